"""The tie rule of the table of dtypes: what is counted as a tie, and what as a mistake."""

from typing import Any

import pytest

from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.vllm_engine.dtypes.checks import BEYOND, Checks, Counts
from tests.engine_adapter.vllm_engine.dtypes.stock_engine import Measured, noise
from tests.engine_adapter.vllm_engine.support.recorded import RecordedRequest, RecordedRun

PROMPT, TEXT = (1, 2), (3, 4, 5)
NGRAM, SELF = SpecMethod("ngram", 2), SpecMethod("self", 2)
NOISE = 0.25


class _Stock:
    """Finds every token the best, but those that it is given a loss for."""

    def __init__(self, losses: dict[int, float]) -> None:
        self._losses = losses

    def losses(self, texts: Any) -> list[list[float]]:
        return [[self._losses.get(token, 0.0) for token in text] for _, text in texts]


class _Engine:
    """Writes one text, with the given drafts."""

    def __init__(self, text: tuple[int, ...], drafts: dict[int, tuple[str, Any]]) -> None:
        self._run = RecordedRun([drafts], [text], [0], 0, {})

    def reset_prefix_cache(self) -> None:
        """It has none."""

    def run(self, requests: list[RecordedRequest]) -> RecordedRun:
        return self._run


def checks(text: tuple[int, ...], method: SpecMethod, draft: int, **losses: float) -> Checks:
    """The checks after a text, in which the first generated token was drafted."""
    found = Checks(
        _Engine(text, {2: (method.proposer, (draft,))}),  # type: ignore[arg-type]
        _Stock({int(name[1:]): loss for name, loss in losses.items()}),  # type: ignore[arg-type]
        Measured({PROMPT: TEXT}, [1.0], [0.0, NOISE]),
        [method],
    )
    found.greedy()
    return found


def test_the_limit_is_twice_the_largest_noise() -> None:
    assert checks(TEXT, NGRAM, 3).found.limit == BEYOND * NOISE == 0.5


def test_stock_vllms_text_is_not_scored() -> None:
    found = checks(TEXT, NGRAM, 3, t4=9.0).found
    assert found.by_proposer == {"ngram": Counts(1)}
    assert not found.wrong


def test_a_text_may_leave_stock_vllms_at_a_tie() -> None:
    found = checks((3, 6, 7), NGRAM, 3, t6=0.5).found
    assert found.by_proposer == {"ngram": Counts(1, ties=1)}
    assert found.farthest == 0.5
    assert not found.wrong


@pytest.mark.parametrize("wrong", ["t6", "t7"])
def test_a_token_beyond_the_noise_is_wrong_also_after_a_tie(wrong: str) -> None:
    found = checks((3, 6, 7), NGRAM, 3, **{wrong: 0.51}).found
    assert found.by_proposer == {"ngram": Counts(1, wrong=1)}
    assert found.wrong == 1


def test_a_refused_draft_of_the_target_itself_is_a_tie_or_wrong() -> None:
    tie = checks(TEXT, SELF, 8, t8=0.5).found
    assert (tie.own, tie.own_refused, tie.own_wrong) == (1, 1, 0)
    assert not tie.wrong
    wrong = checks(TEXT, SELF, 8, t8=0.6).found
    assert (wrong.own, wrong.own_refused, wrong.own_wrong) == (1, 1, 1)
    assert wrong.wrong == 1


def test_noise_is_how_far_a_rivals_distance_moves_between_batches() -> None:
    batches = [{1: -0.5, 2: -1.0, 3: -4.0}, {1: -0.6, 2: -0.8, 3: -4.1}, {1: -0.5}]
    assert noise(batches) == pytest.approx(0.3)
