"""Divide and conquer: each row has the proposer that is best for itself, if its call pays."""

import itertools

import numpy as np
import pytest

from engine_adapter.policies.choice_types import NOTHING
from engine_adapter.policies.per_request import divide_rows

LOOKUP, MODEL, HEAD = 0, 1, 2
COSTS = [0.0, 0.8, 0.5]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1.6, 0.2, 0.1], [0.1, 2.5, 0.3]], [LOOKUP, MODEL]),
        # The model gains more for its row than its call costs, but the lookup gains almost as much.
        ([[1.6, 1.7, 0.1]], [LOOKUP]),
        # Two rows pay for a call together.
        ([[1.0, 1.5, 0.1], [1.0, 1.5, 0.1]], [MODEL, MODEL]),
        # Each row prefers another model; one call for both is better than two.
        ([[0.0, 1.5, 1.4], [0.0, 1.4, 1.5]], [HEAD, HEAD]),
        ([[0.1, 0.7, 0.4]], [LOOKUP]),
        ([[0.0, 0.7, 0.4]], [NOTHING]),
        ([[-0.1, -0.2, -0.3]], [NOTHING]),
    ],
)
def test_a_proposer_stays_while_its_rows_gain_more_than_its_call_costs(
    values: list[list[float]], expected: list[int]
) -> None:
    assert divide_rows(np.array(values), np.array(COSTS)).tolist() == expected


def test_rows_are_divided_almost_as_well_as_by_trying_every_set_of_proposers() -> None:
    random = np.random.default_rng(0)
    shares = []
    for _ in range(200):
        values = random.normal(0.5, 1.0, (random.integers(1, 9), 5))
        costs = random.exponential(1.0, 5) * (random.random(5) < 0.6)
        proposer = divide_rows(values, costs)
        best = max(
            total(values, costs, list(columns))
            for count in range(6)
            for columns in itertools.combinations(range(5), count)
        )
        rows = np.flatnonzero(proposer != NOTHING)
        gain = values[rows, proposer[rows]].sum() - costs[np.unique(proposer[rows])].sum()
        assert gain >= 0
        shares.append(gain / best if best else 1.0)
    assert np.mean(shares) > 0.98


def total(values: np.ndarray, costs: np.ndarray, columns: list[int]) -> float:
    """What all rows gain with the proposers of these columns, less their calls."""
    if not columns:
        return 0.0
    return float(values[:, columns].max(axis=1).clip(0).sum() - costs[columns].sum())
