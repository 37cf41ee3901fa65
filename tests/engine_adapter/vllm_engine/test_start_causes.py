"""A target that cannot be served ends the start, with the reason of the engine's own process."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from demo import model_path
from engine_adapter.seam.errors import EngineConfigError, EngineStartError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import arguments
from tests.engine_adapter.vllm_engine.conftest import start

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

SMALL: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
WINDOWS: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "use_sliding_window": True,
    "sliding_window": 64,
    "max_window_layers": 1,
}
HEADS_OF_32: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "head_dim": 32,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


def model(folder: Path, config: dict[str, Any]) -> str:
    """A folder with this configuration and the demo's tokenizer; its weights are vLLM's dummies."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_path() / name, folder)
    (folder / "config.json").write_text(json.dumps(SMALL | config))
    return str(folder)


async def test_the_exception_of_a_failed_load_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError) as caught:
        await start([], model(tmp_path, WINDOWS), max_model_len=256, load_format="dummy")
    assert str(caught.value).startswith("vLLM did not start: AssertionError: Sliding window for")


async def test_memory_that_is_not_free_is_told_with_vllms_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CPU without a size of the KV cache. vLLM 0.32 finds it before it loads the model."""
    monkeypatch.setattr(arguments, "CPU_KV_CACHE_BYTES", None)
    with pytest.raises(EngineStartError) as caught:
        await start([], gpu_memory_utilization=0.999)
    message = str(caught.value)
    assert message.startswith("vLLM did not start: ValueError: Available memory on node")
    if compat.is_before("0.33"):  # vLLM 0.33 names no flag
        assert "--gpu-memory-utilization" in message


@pytest.mark.prove
async def test_a_target_whose_first_step_fails_is_never_ready(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"max_model_len": 256, "load_format": "dummy", "dtype": "bfloat16"}
    with pytest.raises(EngineConfigError) as caught:
        await start([], model(tmp_path, HEADS_OF_32), **fields)
    assert caught.value.setting == "model"
    assert "cannot run a step on this machine: RuntimeError: Unexpected head dim size, 32" in (
        caught.value.message
    )


@pytest.mark.prove
async def test_an_exception_of_the_core_is_told_with_several_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """EngineCore is then a process of its own, which finds that the KV cache is too small."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    with pytest.raises(EngineStartError) as caught:
        await start([], tensor_parallel_size=2, kv_cache_memory_bytes=1 << 16)
    assert str(caught.value).startswith(
        "vLLM did not start: ValueError: No available memory for the cache blocks"
    )
