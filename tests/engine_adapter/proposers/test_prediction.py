"""The prediction proposer: follows a row, stops at a difference, resumes after a match."""

from collections.abc import Sequence

import numpy as np
import pytest

from engine_adapter.proposers.contract import Proposer
from engine_adapter.proposers.methods import METHODS, parse_spec, with_prediction
from engine_adapter.proposers.prediction import METHOD, position_after
from tests.engine_adapter.proposers.batches import batch

PROMPT = [90, 91, 92]
TEXT = list(range(1, 31))


class PredictedRow:
    """A proposer and one row, step by step."""

    def __init__(self, predicted: Sequence[int] | None = TEXT, **options: int) -> None:
        spec = parse_spec({"name": "p", "method": "prediction", **options})
        self.proposer: Proposer = METHOD.create(spec, None)  # type: ignore[arg-type]
        self._predicted = predicted
        self.generated: list[int] = []

    def after(self, *tokens: int, k: int = 4, name: str = "r") -> list[int]:
        """The drafts after these tokens have been generated too."""
        self.generated += tokens
        rows = {name: PROMPT + self.generated}
        (drafts,) = self.proposer.propose(
            batch(rows, k=k, prompt=len(PROMPT), predicted=[self._predicted])
        ).tokens
        return list(drafts)


def test_a_row_that_follows_its_prediction_gets_drafts_to_its_end() -> None:
    row = PredictedRow()
    assert row.after(1) == [2, 3, 4, 5]
    assert row.after(2, 3, 4, 5, 6) == [7, 8, 9, 10]
    assert row.after(*range(7, 29), k=8) == [29, 30]
    assert row.after(29, 30) == []
    assert row.after(40) == []


def test_the_prompt_is_not_compared_with_the_prediction() -> None:
    assert PredictedRow([*PROMPT, 1, 2, 3]).after(1, 2) == [3]


def test_after_a_difference_drafts_resume_with_the_next_match() -> None:
    row = PredictedRow()
    assert row.after(1, 2) == [3, 4, 5, 6]
    assert row.after(50) == []
    assert row.after(51) == []
    assert row.after(4) == [], "a match needs two tokens"
    assert row.after(5) == [6, 7, 8, 9]


def test_a_difference_in_the_middle_of_a_steps_tokens_is_found() -> None:
    row = PredictedRow()
    row.after(1, 2)
    assert row.after(3, 4, 60) == []
    assert row.after(5, 6) == [7, 8, 9, 10]


def test_predicted_tokens_that_the_row_leaves_out_are_skipped() -> None:
    row = PredictedRow()
    row.after(1, 2, 3)
    assert row.after(12, 13) == [14, 15, 16, 17]


def test_drafts_start_after_text_that_precedes_the_prediction() -> None:
    row = PredictedRow()
    assert row.after(70, 71) == []
    assert row.after(1, 2) == [3, 4, 5, 6]


def test_the_longest_match_wins_then_the_nearest() -> None:
    text = [1, 2, 8, 1, 2, 9, 3, 1, 2, 7]
    row = PredictedRow(text)
    row.after(1, 2, 8, 1, 2, 9, 3)
    assert row.after(55, 1, 2)[:1] == [7], "the match nearest to the difference"
    row = PredictedRow(text)
    row.after(1)
    assert row.after(3, 1, 2) == [7], "three tokens match here, two elsewhere"


def test_the_minimum_match_length_is_an_option() -> None:
    row = PredictedRow(prediction_lookup_min=1)
    row.after(50)
    assert row.after(7) == [8, 9, 10, 11]
    row = PredictedRow(prediction_lookup_min=3, prediction_lookup_max=3)
    row.after(50)
    assert row.after(7, 8) == []
    assert row.after(9) == [10, 11, 12, 13]


def test_a_row_without_a_prediction_gets_no_drafts() -> None:
    assert PredictedRow(None).after(1) == []
    assert PredictedRow([]).after(1) == []


def test_another_request_with_a_forgotten_id_starts_again() -> None:
    row = PredictedRow()
    row.after(*range(1, 20))
    row.proposer.forget(["r", "unknown"])
    row.generated = []
    assert row.after(1) == [2, 3, 4, 5]


def test_drafts_do_not_depend_on_the_steps_without_a_call() -> None:
    always, late = PredictedRow(), PredictedRow()
    for tokens in ((1, 2), (50, 51), (7, 8, 9), (60,)):
        always.after(*tokens)
        late.generated += tokens
    assert late.after(15, 16) == always.after(15, 16) == [17, 18, 19, 20]


@pytest.mark.parametrize("near", [0, 4, 9, 100])
def test_position_after_returns_the_nearest_match_or_none(near: int) -> None:
    text = np.array([5, 6, 7, 5, 6, 8, 5, 6], np.int32)
    found = position_after(np.array([5, 6], np.int32), text, near, 2, 8)
    assert found == min((8, 5, 2), key=lambda end: abs(end - near))
    assert position_after(np.array([6, 5], np.int32), text, near, 2, 8) is None
    assert position_after(np.array([5], np.int32), text, near, 2, 8) is None


def test_prediction_is_added_unless_it_is_configured() -> None:
    ngram = parse_spec({"name": "ngram"})
    own = parse_spec({"name": "mine", "method": "prediction", "num_speculative_tokens": 3})
    added = with_prediction([ngram], 7)
    assert [(s.name, s.num_speculative_tokens) for s in added] == [("ngram", 5), ("prediction", 7)]
    assert with_prediction([ngram, own], 7) == (ngram, own)


@pytest.mark.parametrize("other", [m.name for m in METHODS if m is not METHOD])
def test_a_proposer_of_another_method_cannot_have_its_name(other: str) -> None:
    with pytest.raises(Exception, match="proposer: name: 'prediction' may only be"):
        parse_spec({"name": "prediction", "method": other})
