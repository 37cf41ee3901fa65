"""vLLM's rotary embedding on a CPU, with and without a dimension for heads."""

import inspect
from importlib import import_module
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.rotary_embedding import patch_rotary_embedding

pytestmark = pytest.mark.needs_vllm

TOKENS, HEADS, KEY_HEADS, SIZE = 20, 4, 2, 32


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> Any:
    kernel = compat.RotaryEmbedding.forward_cpu
    monkeypatch.setattr(compat.RotaryEmbedding, "forward_cpu", kernel)  # restored after the test
    patch_rotary_embedding()
    return new_layer()


def new_layer() -> Any:
    config = import_module("vllm.config")
    with config.set_current_vllm_config(config.VllmConfig()):
        return compat.RotaryEmbedding(SIZE, SIZE, 64, 10000.0, True, torch.float32)


@pytest.mark.parametrize("heads_apart", [True, False])
@pytest.mark.parametrize("with_key", [True, False])
def test_each_head_is_turned_by_its_tokens_position(
    layer: Any, heads_apart: bool, with_key: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    positions = torch.arange(TOKENS)
    query = torch.randn(TOKENS, HEADS, SIZE, generator=draw)
    key = torch.randn(TOKENS, KEY_HEADS, SIZE, generator=draw) if with_key else None
    wanted = layer.forward_native(positions, query.clone(), key)
    given = [one if one is None or heads_apart else one.flatten(1) for one in (query, key)]
    got = layer.forward_cpu(positions, *[None if one is None else one.clone() for one in given])
    for made, right, shape in zip(got, wanted, given, strict=True):
        if shape is None:
            assert made is None
            continue
        assert made.shape == shape.shape
        torch.testing.assert_close(made.reshape(right.shape), right)


@pytest.mark.parametrize("is_patched", [False, True])
def test_vllms_own_kernel_has_the_defect(monkeypatch: pytest.MonkeyPatch, is_patched: bool) -> None:
    """If it no longer has, the patch can go: see `DEFECTS`."""
    kernel = compat.RotaryEmbedding.forward_cpu
    monkeypatch.setattr(compat.RotaryEmbedding, "forward_cpu", kernel)  # restored after the test
    if is_patched:
        patch_rotary_embedding()
    layer, query = new_layer(), torch.randn(TOKENS, HEADS, SIZE)
    wanted, _ = layer.forward_native(torch.arange(TOKENS), query.clone(), None)
    kernel = inspect.unwrap(compat.RotaryEmbedding.forward_cpu)
    got, _ = kernel(layer, torch.arange(TOKENS), query.clone())
    assert torch.allclose(got, wanted) is not compat.has_defect("rotary_heads")
