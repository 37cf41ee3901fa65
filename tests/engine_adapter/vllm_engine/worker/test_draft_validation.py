"""What is accepted as drafts, and when a proposer is not asked any more."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.proposers.batch import Drafts
from engine_adapter.vllm_engine.worker.draft_validation import (
    BadDrafts,
    cause,
    checked,
)
from tests.engine_adapter.proposers.batches import batch

VOCABULARY = 100
BATCH = batch({"r": [1, 2, 3], "s": [4], "t": [5, 6]}, k=[3, 0, 2])


def check(tokens: Any, probabilities: Any = None, catchup_tokens: Any = 0) -> Drafts:
    return checked(Drafts(tokens, probabilities, catchup_tokens), BATCH, VOCABULARY)


def test_drafts_that_fit_pass_as_plain_integers() -> None:
    drafts = check([np.array([7, 0, 99]), [], (np.int32(8),)], catchup_tokens=5)
    assert drafts.tokens == [[7, 0, 99], [], [8]]
    assert all(type(token) is int for row in drafts.tokens for token in row)
    assert drafts.catchup_tokens == 5


def test_no_drafts_at_all_pass() -> None:
    assert check([[], [], []]).tokens == [[], [], []]


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param([[1], []], id="a row short"),
        pytest.param([[1], [], [1], [1]], id="a row over"),
        pytest.param([[1], [2], []], id="a token for a row that asked for none"),
        pytest.param([[1, 2, 3, 4], [], []], id="more than k"),
        pytest.param([[VOCABULARY], [], []], id="an id behind the vocabulary"),
        pytest.param([[1], [], [-1]], id="a placeholder"),
        pytest.param([[2**70], [], []], id="an id of no integer type"),
        pytest.param([[1.0], [], []], id="floats"),
        pytest.param([[float("nan")], [], [1]], id="NaN"),
        pytest.param([["1"], [], []], id="text"),
        pytest.param([[None], [], []], id="null"),
        pytest.param([[True], [], [False]], id="truth values"),
    ],
)
def test_what_is_no_draft_is_refused(tokens: Any) -> None:
    with pytest.raises(BadDrafts):
        check(tokens)


@pytest.mark.parametrize("tokens", [None, [None, [], []], [[[1]], [], [[1, 2]]], 5])
def test_what_is_not_even_rows_is_refused_too(tokens: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        check(tokens)


@pytest.mark.parametrize("returned", [None, [[1], [], []], (1, 2)])
def test_what_is_not_drafts_is_refused(returned: Any) -> None:
    with pytest.raises(BadDrafts, match="in place of Drafts"):
        checked(returned, BATCH, VOCABULARY)


@pytest.mark.parametrize("lag", [-1, 1.5, None, float("nan")])
def test_a_lag_that_is_no_count_is_refused(lag: Any) -> None:
    with pytest.raises(BadDrafts, match="catchup_tokens"):
        check([[], [], []], catchup_tokens=lag)


def uniform(rows: int) -> torch.Tensor:
    return torch.full((rows, VOCABULARY), 1 / VOCABULARY)


def test_distributions_pass_beside_one_hot_rows() -> None:
    given = [uniform(2), None, None]
    assert check([[1, 2], [], [3]], given).probabilities is given


def spoil(change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    probabilities = uniform(2)
    change(probabilities)
    return probabilities


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(uniform(1), id="a token without"),
        pytest.param(uniform(2)[:, :-1], id="another vocabulary"),
        pytest.param(uniform(2) * 2, id="not summing to 1"),
        pytest.param(spoil(lambda p: p[1].fill_(float("nan"))), id="NaN"),
        pytest.param(spoil(lambda p: p[0].fill_(float("inf"))), id="infinity"),
        pytest.param(spoil(lambda p: p[0, :2].copy_(torch.tensor([-1.0, 1.02]))), id="negative"),
    ],
)
def test_what_is_no_distribution_is_refused(row: torch.Tensor) -> None:
    with pytest.raises(BadDrafts, match="probabilities"):
        check([[1, 2], [], [3]], [row, None, None])


def test_a_cause_is_short() -> None:
    assert cause(ValueError("no")) == "ValueError: no"
    assert len(cause(ValueError("x" * 10_000))) == 300
