"""Which drafts are valid."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.proposers.batch import Drafts
from engine_adapter.proposers.staging import joined
from engine_adapter.vllm_engine.worker.draft_validation import (
    BadDrafts,
    describe_error,
    repair_distributions,
    require_distributions,
    validate_drafts,
)
from tests.engine_adapter.proposers.batches import batch

VOCABULARY = 100
BATCH = batch({"r": [1, 2, 3], "s": [4], "t": [5, 6]}, k=[3, 0, 2])


def check(tokens: Any, probabilities: Any = None, catchup_tokens: Any = 0) -> Drafts:
    drafts = validate_drafts(Drafts(tokens, probabilities, catchup_tokens), BATCH, VOCABULARY)
    require_distributions(repair_distributions(drafts))
    return drafts


def test_valid_drafts_become_plain_integers() -> None:
    drafts = check([np.array([7, 0, 99]), [], (np.int32(8),)], catchup_tokens=5)
    assert drafts.tokens == [[7, 0, 99], [], [8]]
    assert all(type(token) is int for row in drafts.tokens for token in row)
    assert drafts.catchup_tokens == 5


def test_a_batch_without_drafts_is_valid() -> None:
    assert check([[], [], []]).tokens == [[], [], []]


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param([[1], []], id="a row is missing"),
        pytest.param([[1], [], [1], [1]], id="one row too many"),
        pytest.param([[1], [2], []], id="a token for a row with k = 0"),
        pytest.param([[1, 2, 3, 4], [], []], id="more than k"),
        pytest.param([[VOCABULARY], [], []], id="an id outside the vocabulary"),
        pytest.param([[1], [], [-1]], id="a placeholder"),
        pytest.param([[2**70], [], []], id="an id too large for an integer type"),
        pytest.param([[1.0], [], []], id="floats"),
        pytest.param([[float("nan")], [], [1]], id="NaN"),
        pytest.param([["1"], [], []], id="text"),
        pytest.param([[None], [], []], id="null"),
        pytest.param([[True], [], [False]], id="booleans"),
    ],
)
def test_invalid_token_lists_are_refused(tokens: Any) -> None:
    with pytest.raises(BadDrafts):
        check(tokens)


@pytest.mark.parametrize("tokens", [None, [None, [], []], [[[1]], [], [[1, 2]]], 5])
def test_results_without_rows_are_refused(tokens: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        check(tokens)


@pytest.mark.parametrize("returned", [None, [[1], [], []], (1, 2)])
def test_results_of_another_type_are_refused(returned: Any) -> None:
    with pytest.raises(BadDrafts, match="instead of Drafts"):
        validate_drafts(returned, BATCH, VOCABULARY)


@pytest.mark.parametrize("lag", [-1, 1.5, None, float("nan")])
def test_an_invalid_number_of_catch_up_tokens_is_refused(lag: Any) -> None:
    with pytest.raises(BadDrafts, match="catchup_tokens"):
        check([[], [], []], catchup_tokens=lag)


def uniform(rows: int) -> torch.Tensor:
    return torch.full((rows, VOCABULARY), 1 / VOCABULARY)


def test_distributions_beside_one_hot_rows_are_valid() -> None:
    given = [uniform(2), None, None]
    found = check([[1, 2], [], [3]], given).probabilities
    assert found is not None
    assert found[0] is not None
    assert torch.equal(found[0], uniform(2))
    assert list(found[1:]) == [None, None]


def test_distributions_are_copied_once_so_that_they_follow_each_other() -> None:
    given = [uniform(2), None, uniform(1)]
    found = check([[1, 2], [], [4]], given).probabilities
    assert found is not None
    together = joined([one for one in found if one is not None])
    assert torch.equal(together, uniform(3))
    assert together.data_ptr() == found[0].data_ptr()


def spoil(change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    probabilities = uniform(2)
    change(probabilities)
    return probabilities


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(uniform(1), id="a token without a distribution"),
        pytest.param(uniform(2)[:, :-1], id="another vocabulary"),
        pytest.param(uniform(2) * 2, id="not summing to 1"),
        pytest.param(spoil(lambda p: p[1].fill_(float("nan"))), id="NaN"),
        pytest.param(spoil(lambda p: p[0].fill_(float("inf"))), id="infinity"),
        pytest.param(spoil(lambda p: p[0, :2].copy_(torch.tensor([-1.0, 1.02]))), id="negative"),
    ],
)
def test_invalid_distributions_are_refused(row: torch.Tensor) -> None:
    with pytest.raises(BadDrafts, match="probabilities"):
        check([[1, 2], [], [3]], [row, None, None])


def test_what_is_no_distribution_becomes_certain_of_its_token() -> None:
    wrong = spoil(lambda p: p[1].fill_(float("nan")))
    drafted = Drafts([[1, 2], [], [3]], [wrong, None, uniform(1)])
    drafts = validate_drafts(drafted, BATCH, VOCABULARY)
    are_valid = repair_distributions(drafts)
    assert are_valid is not None
    assert not are_valid.arrays()[0]
    certain = torch.nn.functional.one_hot(torch.tensor(2), VOCABULARY).float()
    assert drafts.probabilities is not None
    assert torch.equal(drafts.probabilities[0], torch.stack([uniform(1)[0], certain]))
    assert torch.equal(drafts.probabilities[2], uniform(1))


def test_the_description_of_an_error_is_short() -> None:
    assert describe_error(ValueError("no")) == "ValueError: no"
    assert len(describe_error(ValueError("x" * 10_000))) == 300
