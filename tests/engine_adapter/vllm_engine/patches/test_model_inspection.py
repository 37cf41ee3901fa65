"""Classes of models are inspected without a process of their own."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.vllm_engine.patches.model_inspection import patch_model_inspection

pytestmark = pytest.mark.needs_vllm


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's registry of models, on a machine that has inspected none and can start no process."""

    def refuse(inspect: object) -> None:
        raise OSError("no process")

    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    registry = import_module("vllm.model_executor.models.registry")
    monkeypatch.setattr(registry, "_run_in_subprocess", refuse)
    return registry


def inspect_llama(registry: Any) -> Any:
    module = "vllm.model_executor.models.llama"
    return registry._LazyRegisteredModel(module, "LlamaForCausalLM").inspect_model_cls()


def test_a_class_is_inspected_in_this_process(registry: Any, tmp_path: Path) -> None:
    patch_model_inspection()
    info = inspect_llama(registry)
    assert (info.architecture, info.is_text_generation_model) == ("LlamaForCausalLM", True)
    (written,) = (tmp_path / "modelinfos").iterdir()
    assert "LlamaForCausalLM" in written.name


def test_without_the_patch_vllm_starts_one(registry: Any) -> None:
    with pytest.raises(OSError, match="no process"):
        inspect_llama(registry)
