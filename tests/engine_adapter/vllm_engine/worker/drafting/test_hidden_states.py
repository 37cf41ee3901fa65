"""The target's hidden states in KV slots, in blocks with and without padding."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.needs_vllm

BLOCKS, SIZE, WIDTH, PADDING = 5, 4, 6, 3


def make_cache() -> Any:
    """A `HiddenStateCache` that vLLM has given no memory yet; importing it imports vLLM."""
    module = import_module("engine_adapter.vllm_engine.worker.drafting.hidden_states")
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.float32),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
    return module.HiddenStateCache("states.0", WIDTH, config)


def blocks(padding: int) -> torch.Tensor:
    """Memory as vLLM gives it, with elements after each block that no slot has."""
    memory = torch.zeros(BLOCKS, SIZE * WIDTH + padding)
    return memory[:, : SIZE * WIDTH].view(BLOCKS, 1, SIZE, WIDTH)


@pytest.mark.parametrize("padding", [0, PADDING])
def test_slots_hold_what_was_written_last(padding: int) -> None:
    cache = make_cache()
    cache.kv_cache = blocks(padding)
    states = torch.randn(3, WIDTH)
    cache.write(torch.tensor([0, 7, 18]), states)
    cache.write(torch.tensor([7]), states[:1] + 1)
    read = cache.read(torch.tensor([18, 7, 0, 1]))
    assert torch.equal(read, torch.stack([states[2], states[0] + 1, states[0], torch.zeros(WIDTH)]))


@pytest.mark.parametrize("padding", [0, PADDING])
def test_states_are_in_the_blocks_that_vllm_copies(padding: int) -> None:
    cache = make_cache()
    cache.kv_cache = memory = blocks(padding)
    states = torch.randn(SIZE, WIDTH)
    cache.write(torch.arange(SIZE) + 2 * SIZE, states)
    assert torch.equal(memory[2, 0], states)
    memory[4] = memory[2]
    assert torch.equal(cache.read(torch.arange(SIZE) + 4 * SIZE), states)
    assert cache.num_bytes == BLOCKS * SIZE * WIDTH * 4


def test_an_engine_with_batch_invariance_may_have_the_layer() -> None:
    """vLLM ends the start where a layer's attention is not invariant; this one has none."""
    assert make_cache().get_attn_backend().supports_batch_invariance()
