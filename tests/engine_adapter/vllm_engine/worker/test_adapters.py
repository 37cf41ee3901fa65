"""LoRA adapters on runner V2, by rows of logits."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.needs_vllm

NAMES, ROWS, SCHEDULED = ["a", "b", "c"], np.array([2, 0, 1]), np.array([3, 4, 1])


class Adapter:
    """What is read of a `LoRARequest`."""

    def __init__(self, number: int) -> None:
        self.lora_int_id = number


def adapters(drafts: dict[str, list[int]]) -> Any:
    """Three requests: `a` with adapter 7, `b` with none, `c` with adapter 9."""
    from engine_adapter.vllm_engine.worker.adapters import RowAdapters

    made = RowAdapters(4)
    for name, row, number in zip(NAMES, ROWS, (7, None, 9), strict=True):
        made.add_request(name, row, None if number is None else Adapter(number))
    made.drafts = drafts
    return made


def test_each_draft_has_the_adapter_of_its_request() -> None:
    made = adapters({"a": [1, 2], "c": []})
    rows, tokens, requests = made.make_lora_inputs(NAMES, ROWS, SCHEDULED)
    assert rows == (7, 7, 7, 0, 9)
    assert tokens == (7, 7, 7, 0, 0, 0, 0, 9)
    assert {request.lora_int_id for request in requests} == {7, 9}
    assert made.make_lora_inputs(["c"], np.array([1]), np.array([1]))[0] == (9,)


def test_each_part_of_a_prompt_has_the_adapters_of_its_tokens() -> None:
    from engine_adapter.vllm_engine.worker.adapters import PromptAdapters

    class Worker:
        """vLLM's, which reads the states in parts."""

        def compute_prompt_logprobs(self, logits: Any, hidden: Any, batch: Any, more: int) -> Any:
            return [logits(hidden[first : first + 3]) for first in (0, 3, 6)], more

        compute_prompt_token_id_logprobs = compute_prompt_logprobs
        is_vllms = True

    activated: list[tuple[Any, ...]] = []
    made = PromptAdapters(Worker(), adapters({"a": [1, 2]}), lambda *args: activated.append(args))
    assert made.is_vllms
    batch = SimpleNamespace(req_ids=NAMES, idx_mapping_np=ROWS, num_scheduled_tokens=SCHEDULED)
    hidden = torch.arange(40.0).view(10, 4)[1:9]  # a part of a buffer
    for compute in (made.compute_prompt_logprobs, made.compute_prompt_token_id_logprobs):
        activated.clear()
        parts, more = compute(lambda part: part[:, 0].tolist(), hidden, batch, 5)
        assert (parts, more) == ([[4, 8, 12], [16, 20, 24], [28, 32]], 5)
        assert [rows for rows, *_ in activated] == [(7, 7, 7), (0, 0, 0), (0, 9)]
        assert all(tokens == (7, 7, 7, 0, 0, 0, 0, 9) for _, tokens, _ in activated)
