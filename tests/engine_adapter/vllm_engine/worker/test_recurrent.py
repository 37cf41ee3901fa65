"""Recurrent layers: which loaded ones are refused."""

from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.recurrent import StateLayerHooks


class KeepingSpecs:
    """A runner with layers of vLLM's classes of these names, beside attention."""

    def __init__(self, layers: Mapping[str, str]) -> None:
        kinds = {name: type(kind, (), {})() for name, kind in layers.items()}
        self.compilation_config = SimpleNamespace(static_forward_context=kinds)
        self.refused: list[tuple[str, str]] = []
        progress = SimpleNamespace(refuse=lambda *why: self.refused.append(why))
        self.drafter = SimpleNamespace(host=SimpleNamespace(progress=progress))

    def get_kv_cache_spec(self) -> dict[str, Any]:
        backends = import_module("vllm.v1.attention.backends.registry").MambaAttentionBackendEnum
        state = compat.MambaSpec(
            block_size=64, shapes=((4, 8),), dtypes=(torch.float32,), mamba_type=backends.MAMBA2
        )
        kept = compat.FullAttentionSpec(
            block_size=32, num_kv_heads=1, head_size=8, dtype=torch.bfloat16
        )
        names = self.compilation_config.static_forward_context
        return {**dict.fromkeys(names, state), "attention": kept}


class Loaded(StateLayerHooks, KeepingSpecs):
    """A runner whose target is loaded, with the hooks."""


@pytest.mark.needs_vllm
def test_loaded_layers_whose_state_follows_drafts_are_accepted() -> None:
    runner = Loaded({"a": "MambaMixer2", "b": "ShortConv"})
    assert set(runner.get_kv_cache_spec()) == {"a", "b", "attention"}


@pytest.mark.needs_vllm
def test_a_loaded_layer_that_the_gateway_did_not_know_ends_the_start() -> None:
    runner = Loaded({"a": "MambaMixer2", "b": "MambaMixer"})
    with pytest.raises(SystemExit):
        runner.get_kv_cache_spec()
    ((setting, reason),) = runner.refused
    assert setting == "model"
    assert "MambaMixer: it never reads" in reason
