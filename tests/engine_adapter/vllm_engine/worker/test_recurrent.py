"""Recurrent layers: which are refused, and resumed requests that compute a few tokens again."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.recurrent import FOLLOWING, RecurrentStateHooks, fault_of

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


def layer(kind: str) -> Any:
    """vLLM's spec of a recurrent layer."""
    backends = import_module("vllm.v1.attention.backends.registry").MambaAttentionBackendEnum
    return compat.MambaSpec(
        block_size=64, shapes=((4, 8),), dtypes=(torch.float32,), mamba_type=backends[kind]
    )


@pytest.mark.needs_vllm
def test_layers_whose_state_follows_drafts_are_accepted() -> None:
    attention = compat.FullAttentionSpec(
        block_size=32, num_kv_heads=1, head_size=8, dtype=torch.bfloat16
    )
    assert fault_of([attention, layer(FOLLOWING)]) is None


@pytest.mark.needs_vllm
@pytest.mark.parametrize("kind", ["MAMBA1", "LINEAR", "SHORT_CONV", "GDN_ATTN"])
def test_other_layers_are_refused_by_name(kind: str) -> None:
    fault = fault_of([layer(FOLLOWING), layer(kind)])
    assert fault is not None
    assert f"kind {kind} keep" in fault
