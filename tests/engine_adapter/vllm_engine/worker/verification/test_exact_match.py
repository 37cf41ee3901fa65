"""Rows emit their samples up to the first that differs from its draft."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification.exact_match import ExactMatch, accept_matching

Row = tuple[list[int], list[int]]
"""The drafts of a row, and what was sampled at its positions: one more."""


def emitted(drafts: list[int], samples: list[int]) -> list[int]:
    """What a row emits, one token at a time."""
    tokens = []
    for draft, sample in zip([*drafts, None], samples, strict=True):
        tokens.append(sample)
        if sample != draft:
            break
    return tokens


def flat(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples, inputs and starts of a step; the newest token of each row is 99."""
    samples = torch.tensor([token for _, of_row in rows for token in of_row])
    inputs = torch.tensor([token for drafts, _ in rows for token in (99, *drafts)])
    sizes = torch.tensor([0, *(len(drafts) + 1 for drafts, _ in rows)])
    return samples, inputs.int(), sizes.cumsum(0).int()


@pytest.mark.parametrize("equally_many", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_rows_emit_what_they_would_emit_one_by_one(seed: int, equally_many: bool) -> None:
    rng = random.Random(seed)
    rows: list[Row] = []
    length = rng.randint(0, 4)
    for _ in range(rng.randint(1, 6)):
        drafts = [rng.randrange(3) for _ in range(length if equally_many else rng.randint(0, 4))]
        samples = [rng.randrange(3) for _ in range(len(drafts) + 1)]
        if rng.random() < 0.5:
            samples[:-1] = drafts
        rows.append((drafts, samples))
    width = max(len(drafts) for drafts, _ in rows) + 1
    tokens, counts = accept_matching(*flat(rows), width)
    assert tokens.shape == (len(rows), width)
    assert counts.dtype == torch.int32
    for of_row, count, row in zip(tokens.tolist(), counts.tolist(), rows, strict=True):
        assert of_row[:count] == emitted(*row)


@pytest.mark.needs_vllm
def test_a_draft_that_a_grammar_does_not_know_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[torch.Tensor] = []

    def count(counts: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        counted.append(counts)
        return counts, 3 - counts

    monkeypatch.setitem(
        vars(compat), "v2_input_batch", SimpleNamespace(get_num_sampled_and_rejected=count)
    )
    samples, inputs, starts = flat([([5, 6], [5, 6, 7])])
    output_type = make_output_type()

    def sampler(logits: Any, batch: Any) -> Any:
        return output_type(samples.view(-1, 1), None, None)

    sampler.req_states = SimpleNamespace(  # type: ignore[attr-defined]
        prefill_len=SimpleNamespace(gpu=None)
    )
    sampler.are_plain = lambda rows: False  # type: ignore[attr-defined]
    batch = SimpleNamespace(
        input_ids=inputs,
        logits_indices=torch.arange(3),
        num_draft_tokens_per_req=torch.tensor([2]),
        cu_num_logits=starts,
        seq_lens=None,
        idx_mapping=None,
        idx_mapping_np=None,
    )
    verify = ExactMatch(sampler)
    assert verify(torch.empty(3, 8), batch).num_sampled.tolist() == [3]
    # The second draft met a mask that allows all.
    invalid = torch.tensor([False, False, True])
    output = verify(torch.empty(3, 8), batch, None, invalid)
    assert output.num_sampled.tolist() == [2]
    assert output.num_rejected.tolist() == [1]
    assert output.sampled_token_ids.tolist() == [[5, 6, 7]]


def make_output_type() -> Any:
    """A dataclass with the fields of vLLM's `SamplerOutput` that are replaced."""
    from dataclasses import make_dataclass

    return make_dataclass("Output", ["sampled_token_ids", "num_sampled", "num_rejected"])
