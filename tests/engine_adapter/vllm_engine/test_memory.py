"""The memory that each proposer reports, compared with vLLM's own KV budget."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from safetensors import safe_open
from transformers import AutoConfig

from demo import model_path
from engine_adapter.seam.types import ProposerInfo
from tests.engine_adapter.vllm_engine.architectures.catalog import SERVED
from tests.engine_adapter.vllm_engine.architectures.small_models import write_model
from tests.engine_adapter.vllm_engine.conftest import TARGET, start

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

BUDGET = 64 << 20
"""Bytes of KV cache, for the target and the proposers with KV."""

FLOAT32 = 4
WITH_KV = ("draft", "eagle", "eagle3")
HEADS = ("medusa", "mlp-speculator")
METHODS = {"draft": "draft_model", "mlp-speculator": "mlp_speculator"}


def proposer(name: str) -> dict[str, Any]:
    """One of the demo's models as a proposer."""
    return {"name": name, "method": METHODS.get(name, name), "model": str(model_path(name))}


async def memory_of(*names: str) -> tuple[int, dict[str, ProposerInfo]]:
    """The KV blocks of an engine with these proposers, as vLLM counts them, and the proposers."""
    return await memory_with([proposer(name) for name in names])


async def memory_with(
    proposers: list[dict[str, Any]], target: str = TARGET, **arguments: Any
) -> tuple[int, dict[str, ProposerInfo]]:
    """The same for any proposers and any target."""
    live = await start(proposers, target, kv_cache_memory_bytes=BUDGET, **arguments)
    try:
        shown = {info.name: info for info in await live.engine.proposers()}
        (labels,) = (
            sample.labels
            for family in live.registry.collect()
            for sample in family.samples
            if sample.name == "vllm:cache_config_info"
        )
        return int(labels["num_gpu_blocks"]), shown
    finally:
        await live.engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def target_blocks() -> AsyncIterator[int]:
    """The blocks of an engine in which only the target has KV."""
    yield (await memory_of("medusa"))[0]


def bytes_per_block() -> int:
    """Bytes of the target's layers in a block, from its configuration."""
    config = AutoConfig.from_pretrained(TARGET)
    per_token = 2 * config.num_key_value_heads * config.head_dim * FLOAT32
    tokens: int = 128  # vLLM's block on CPU
    return tokens * per_token * config.num_hidden_layers


# Each starts an engine of its own; the one with all of them is enough for `make test`.
@pytest.mark.prove
@pytest.mark.parametrize("name", WITH_KV)
async def test_the_reported_kv_is_the_budget_that_the_target_loses(
    target_blocks: int, name: str
) -> None:
    block = bytes_per_block()
    assert target_blocks == BUDGET // block, "the size of a block of the target is known"
    blocks, shown = await memory_of(name)
    lost = (target_blocks - blocks) * block
    assert lost > 10 * block
    # The remainder at the end of either cache is less than a block of it.
    assert abs(shown[name].kv_bytes - lost) <= block + shown[name].kv_bytes / blocks


@pytest.mark.prove
@pytest.mark.parametrize("name", ["gemma3n, shared KV", "gemma4, shared KV"])
async def test_layers_that_read_the_kv_of_others_are_not_counted(tmp_path: Path, name: str) -> None:
    """Target and draft are the same model, two of whose four layers have KV: each has half."""
    (shared,) = (one for one in SERVED if one.name == name)
    target = write_model(shared, tmp_path / "target")
    itself = {"name": "self", "method": "draft_model", "model": target}
    one_group = {"disable_hybrid_kv_cache_manager": True, "max_model_len": 256}
    blocks, shown = await memory_with([itself], target, **one_group)
    assert abs(shown["self"].kv_bytes - BUDGET / 2) <= BUDGET / blocks


async def test_the_kv_of_several_proposers_adds_up_to_the_lost_budget() -> None:
    block = bytes_per_block()
    blocks, shown = await memory_of(*WITH_KV, *HEADS)
    taken = sum(info.kv_bytes for info in shown.values())
    # The test above shows that an engine without them has so many blocks.
    assert abs(taken - (BUDGET // block - blocks) * block) <= block + taken / blocks
    assert all(shown[name].kv_bytes == 0 for name in HEADS)
    for name in ("draft", *HEADS):
        assert shown[name].weights_bytes == stored(name), name


def stored(name: str) -> int:
    """The bytes of a checkpoint's tensors in float32."""
    with safe_open(model_path(name) / "model.safetensors", framework="numpy") as file:
        sizes = [file.get_slice(key).get_shape() for key in file.offset_keys()]
    return FLOAT32 * sum(rows * (columns[0] if columns else 1) for rows, *columns in sizes)
