"""torchvision without its extension for CUDA."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine_adapter.vllm_engine.torchvision_on_cpu import declare_operators

EXTENSION = "import os\n\nimport torch\n\n\ndef _has_ops():\n    return False\n"

IMPORT_AND_RESIZE = """
import torch, torchvision
from torchvision.transforms.v2 import functional
print(functional.resize(torch.zeros(3, 8, 8), [4, 4]).shape)
"""


def package(folder: Path, extension: str) -> Path:
    (folder / "extension.py").write_text(extension)
    return folder


def test_operators_are_declared_once(tmp_path: Path) -> None:
    folder = package(tmp_path, EXTENSION)
    assert declare_operators(folder)
    source = (folder / "extension.py").read_text()
    assert source.startswith(EXTENSION)
    assert not declare_operators(folder)
    assert (folder / "extension.py").read_text() == source


@pytest.mark.parametrize("extension", ["import torch\n", "def _has_ops():\n    return False\n"])
def test_another_torchvision_is_refused(tmp_path: Path, extension: str) -> None:
    folder = package(tmp_path, extension)
    with pytest.raises(ValueError, match="is not supported"):
        declare_operators(folder)
    assert (folder / "extension.py").read_text() == extension


@pytest.mark.needs_vllm
def test_the_installed_torchvision_changes_pictures() -> None:
    command = [sys.executable, "-c", IMPORT_AND_RESIZE]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "[3, 4, 4]" in printed
