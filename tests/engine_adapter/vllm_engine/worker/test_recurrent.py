"""Recurrent layers: which are refused, and resumed requests that compute a few tokens again."""

from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.recurrent import RecurrentStateHooks, StateLayerHooks

LENGTHS = {"resumed": 40, "prompt": 30, "drafting": 50, "one": 45}
"""Tokens of each request."""
PROMPTS = {"resumed": 20, "prompt": 30, "drafting": 20, "one": 20}


class Upstream:
    """A runner whose batch is reordered, and that notes which rows read their prompt."""

    def __init__(self, *, hybrid: bool) -> None:
        names = list(LENGTHS)
        self.model_config = SimpleNamespace(is_hybrid=hybrid)
        self.input_batch = SimpleNamespace(
            req_id_to_index={name: row for row, name in enumerate(names)},
            num_prompt_tokens=np.array([PROMPTS[name] for name in names]),
            num_tokens_no_spec=np.array([LENGTHS[name] for name in names]),
        )
        self.seen: list[dict[str, int]] = []

    def prompts(self) -> dict[str, int]:
        batch = self.input_batch
        return {
            name: int(batch.num_prompt_tokens[row]) for name, row in batch.req_id_to_index.items()
        }

    def _may_reorder_batch(self, scheduler_output: Any) -> None:
        self.seen.append(self.prompts())
        batch = self.input_batch
        for array in (batch.num_prompt_tokens, batch.num_tokens_no_spec):
            array[:] = array[::-1].copy()
        last = len(LENGTHS) - 1
        batch.req_id_to_index = {n: last - row for n, row in batch.req_id_to_index.items()}

    def _build_attention_metadata(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(self.prompts())
        return args, kwargs


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


class Runner(RecurrentStateHooks, Upstream):
    """A runner with the hooks."""


SCHEDULED = SimpleNamespace(
    num_scheduled_tokens={"resumed": 3, "prompt": 5, "drafting": 4, "one": 1},
    scheduled_spec_decode_tokens={"drafting": [7, 8, 9]},
)


def test_tokens_that_a_resumed_request_computes_again_count_as_its_prompt() -> None:
    runner = Runner(hybrid=True)
    runner._may_reorder_batch(SCHEDULED)
    assert runner._build_attention_metadata(1, b=2) == ((1,), {"b": 2})
    assert runner.seen == [PROMPTS | {"resumed": LENGTHS["resumed"]}] * 2
    assert runner.prompts() == PROMPTS, "restored, although the rows have moved"


def test_a_target_without_recurrent_layers_is_left_alone() -> None:
    runner = Runner(hybrid=False)
    runner._may_reorder_batch(SCHEDULED)
    runner._build_attention_metadata()
    assert runner.seen == [PROMPTS] * 2


# -- refusals --------------------------------------------------------------------------------


class Loaded(StateLayerHooks, KeepingSpecs):
    """A runner of either kind whose target is loaded, with the hooks."""


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
