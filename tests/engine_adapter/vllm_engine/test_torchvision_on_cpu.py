"""An installed torchvision beside a torch for CPUs."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine_adapter.vllm_engine.torchvision_on_cpu import declare_operators

pytestmark = pytest.mark.needs_vllm

EXTENSION = """
import torch


def _has_ops():
    return False
"""


def package(folder: Path, source: str = EXTENSION) -> Path:
    (folder / "extension.py").write_text(source)
    return folder


def test_the_operators_are_declared_once(tmp_path: Path) -> None:
    folder = package(tmp_path)
    assert declare_operators(folder)
    declared = (folder / "extension.py").read_text()
    assert declared.startswith(EXTENSION)
    assert not declare_operators(folder)
    assert (folder / "extension.py").read_text() == declared


def test_the_operators_exist_after_the_import_of_the_extension(tmp_path: Path) -> None:
    declare_operators(package(tmp_path))
    code = "import torch, extension; print(torch.ops.torchvision.nms, torch.ops.torchvision.qnms)"
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, '.'); {code}"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "torchvision.nms" in result.stdout


def test_another_form_of_the_extension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no function _has_ops"):
        declare_operators(package(tmp_path, "import torch"))


def test_the_installed_torchvision_works() -> None:
    import torchvision
    from PIL import Image

    from engine_adapter.vllm_engine.gateway import preflight

    assert preflight.check_libraries()
    resized = torchvision.transforms.v2.functional.resize(Image.new("RGB", (8, 8)), [4, 4])
    assert resized.size == (4, 4)
