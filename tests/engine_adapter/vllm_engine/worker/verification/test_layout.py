"""The layout of a verification step, and the tokens that each row emits by exact match."""

import numpy as np
import torch

from engine_adapter.vllm_engine.worker.verification.layout import VerifyLayout

CPU = torch.device("cpu")


def emitted(counts: list[int], drafts: list[int], samples: list[int]) -> list[list[int]]:
    layout = VerifyLayout(counts, CPU)
    output = layout.accept_matching(torch.tensor(drafts), torch.tensor(samples))
    return [[token for token in row if token >= 0] for row in output.tolist()]


def by_hand(counts: list[int], drafts: list[int], samples: list[int]) -> list[list[int]]:
    rows = []
    for count in counts:
        row_drafts, drafts = drafts[:count], drafts[count:]
        row_samples, samples = samples[: count + 1], samples[count + 1 :]
        accepted = 0
        while accepted < count and row_drafts[accepted] == row_samples[accepted]:
            accepted += 1
        rows.append(row_samples[: accepted + 1])
    return rows


def test_a_row_emits_its_samples_up_to_the_first_that_differs() -> None:
    assert emitted([2, 0, 3], [5, 6, 7, 8, 9], [5, 6, 1, 2, 7, 0, 9, 4]) == [[5, 6, 1], [2], [7, 0]]


def test_emission_is_the_rule_for_any_mix_of_rows() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        counts = rng.integers(0, 6, rng.integers(1, 9)).tolist()
        if not sum(counts):
            continue
        drafts = rng.integers(0, 2, sum(counts)).tolist()
        samples = rng.integers(0, 2, sum(counts) + len(counts)).tolist()
        assert emitted(counts, drafts, samples) == by_hand(counts, drafts, samples)


def test_the_positions_of_a_row_are_counted_from_its_first_draft() -> None:
    layout = VerifyLayout([2, 0, 1], CPU)
    assert [list(layout.positions_of(row)) for row in range(3)] == [
        [(0, 0), (1, 1), (2, 2)],
        [(3, 0)],
        [(4, 0), (5, 1)],
    ]
