"""The verifier: what each position is sampled with, and the layout of its output."""

from types import SimpleNamespace

import pytest
import torch

from engine_adapter.vllm_engine.worker.verification.layout import VerifyLayout
from engine_adapter.vllm_engine.worker.verification.verifier import (
    Verifier,
    _outputs_before,
    _pad_logprobs,
)
from tests.engine_adapter.vllm_engine.support import verified_pairs
from tests.engine_adapter.vllm_engine.support.exact import Sampling


def test_each_position_sees_the_drafts_before_it() -> None:
    layout = VerifyLayout([2, 0, 1], torch.device("cpu"))
    before = _outputs_before([[1], [2, 2], []], layout, [[7, 8], [], [9]])
    assert before == [[1], [1, 7], [1, 7, 8], [2, 2], [], [9]]


def test_logprobs_follow_the_layout_of_the_output() -> None:
    class Logprobs(tuple):  # as vLLM's, whose first three entries are per position
        def __new__(cls, *tensors: torch.Tensor) -> "Logprobs":
            return super().__new__(cls, tensors)

    layout = VerifyLayout([1, 0], torch.device("cpu"))
    entries = torch.tensor([[10.0], [11.0], [20.0]])
    padded = _pad_logprobs(Logprobs(entries.int(), entries, entries[:, 0]), layout)
    assert padded[1].shape == (4, 1)
    assert padded[1][:3, 0].tolist() == [10, 11, 20]


@pytest.mark.needs_vllm
def test_a_warm_up_call_without_inputs_matches_exactly() -> None:
    """vLLM warms its rejection sampler up with `None` for the draft probabilities."""
    logits = torch.full((4, verified_pairs.V), -100.0)
    logits[torch.arange(4), torch.tensor([1, 2, 3, 0])] = 0.0
    metadata = SimpleNamespace(num_draft_tokens=[1, 1], draft_token_ids=torch.tensor([1, 1]))
    rows = verified_pairs._metadata(Sampling(), torch.empty(2, 0, dtype=torch.long))
    output = Verifier(verified_pairs._sampler())(metadata, None, logits, rows)
    assert output.sampled_token_ids.tolist() == [[1, 2], [3, -1]]


@pytest.mark.needs_vllm
def test_steps_with_the_same_counts_share_a_layout_and_others_get_their_own() -> None:
    verifier = Verifier(verified_pairs._sampler())

    def emitted(counts: list[int], drafts: list[int], best: list[int]) -> list[list[int]]:
        logits = torch.full((len(best), verified_pairs.V), -100.0)
        logits[torch.arange(len(best)), torch.tensor(best)] = 0.0
        metadata = SimpleNamespace(num_draft_tokens=counts, draft_token_ids=torch.tensor(drafts))
        rows = verified_pairs._metadata(Sampling(), torch.empty(2, 0, dtype=torch.long))
        tokens: list[list[int]] = verifier(metadata, None, logits, rows).sampled_token_ids.tolist()
        return tokens

    assert emitted([1, 1], [1, 1], [1, 2, 3, 0]) == [[1, 2], [3, -1]]
    first = verifier._layout
    assert emitted([1, 1], [3, 2], [0, 2, 2, 1]) == [[0, -1], [2, 1]]
    assert verifier._layout is first
    assert emitted([0, 2], [3, 2], [0, 3, 2, 1]) == [[0, -1, -1], [3, 2, 1]]
    assert emitted([2, 0], [3, 2], [3, 2, 1, 0]) == [[3, 2, 1], [0, -1, -1]]
