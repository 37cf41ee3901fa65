"""Draft models and settings that vLLM accepts and then fails with: they are refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from demo import model_path
from engine_adapter.seam.errors import EngineConfigError
from tests.engine_adapter.proposers.eagle_heads import eagle
from tests.engine_adapter.vllm_engine.conftest import TARGET, start

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.asyncio(loop_scope="session")]

VLLMS_TRACEBACK = "EngineCore failed to start"
"""The line before the traceback of an engine process that cannot start."""

SIZES: dict[str, Any] = {"vocab_size": 2048, "num_hidden_layers": 2}


def save(model: Any, folder: Path) -> str:
    """Writes a model with the demo target's tokenizer."""
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(TARGET) / name, folder / name)
    return str(folder)


def mamba(folder: Path) -> str:
    from transformers import MambaConfig, MambaForCausalLM

    return save(MambaForCausalLM(MambaConfig(hidden_size=64, state_size=16, **SIZES)), folder)


def incomplete(folder: Path) -> str:
    """The demo's draft model without its last norm."""
    shutil.copytree(model_path("draft"), folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file)
    return str(folder)


@pytest.mark.parametrize(
    ("make", "begins", "says"),
    [
        (mamba, "small: model: mamba ", "has layers whose cache is not proven"),
        (incomplete, "small: {model}: ", "model.norm.weight"),
    ],
)
async def test_a_draft_model_that_cannot_work_ends_the_start_with_its_name(
    make: Callable[[Path], str],
    begins: str,
    says: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Layers are known from the configuration; what weights lack, only when they are read."""
    model = make(tmp_path / "draft")
    draft = {"name": "small", "method": "draft_model", "model": model}
    with pytest.raises(EngineConfigError, match=says) as caught:
        await start([{"name": "ngram"}, draft], kv_cache_memory_bytes=64 << 20)
    assert caught.value.setting == "proposer"
    assert caught.value.message.startswith(begins.format(model=model))
    assert "\n" not in caught.value.message
    assert VLLMS_TRACEBACK not in capfd.readouterr().err


async def test_a_block_size_that_the_attention_lacks_is_refused_as_such(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((Path(TARGET) / "config.json").read_text())
    head = {"name": "eagle", "model": eagle(config).write(tmp_path)}
    with pytest.raises(EngineConfigError, match=r"16 does not fit .*MultipleOf") as caught:
        await start([head], kv_cache_memory_bytes=64 << 20, block_size=16)
    assert caught.value.setting == "block_size"
    assert VLLMS_TRACEBACK not in capfd.readouterr().err
