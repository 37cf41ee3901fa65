"""The outcomes of shadow drafts: what the target's own tokens say about them."""

from collections.abc import Sequence

import numpy as np
import pytest

from engine_adapter.policies.contract import DraftOutcome
from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.vllm_engine.worker.shadows import ShadowDrafts

START = 3
"""Tokens of the row when its draft was made."""

WRITTEN = [10, 11, 12, 13, 14, 15, 16, 17]
"""The row's tokens in the end."""


def batch_of(*request_ids: str, k: int = 4, num_tokens: int = START) -> DraftBatch:
    """Rows that ask for k tokens."""
    count = len(request_ids)
    return DraftBatch(
        rows=np.arange(count),
        request_ids=request_ids,
        num_tokens=np.full(count, num_tokens),
        num_prompt_tokens=np.full(count, 1),
        num_computed=np.full(count, num_tokens - 1),
        k=np.full(count, k),
        token_ids=np.zeros((count, 16), np.int32),
    )


def compare(shadows: ShadowDrafts, length: int, *request_ids: str) -> list[DraftOutcome]:
    """The outcomes when each row has written `length` of its tokens."""
    tokens = np.full((len(request_ids), 16), -1, np.int32)
    tokens[:, :length] = WRITTEN[:length]
    return shadows.compare([(r, i, length) for i, r in enumerate(request_ids)], tokens)


@pytest.fixture
def shadows() -> ShadowDrafts:
    return ShadowDrafts()


def with_difference(at: int) -> list[int]:
    """A draft of four tokens that differs from what the row writes at one position."""
    draft = WRITTEN[START : START + 4]
    draft[at] = 99
    return draft


@pytest.mark.parametrize("at", range(4))
def test_a_difference_ends_a_draft_as_soon_as_it_is_written(shadows: ShadowDrafts, at: int) -> None:
    assert shadows.add("ngram", batch_of("r"), [with_difference(at)]) == []
    for length in range(START, START + at + 1):
        assert compare(shadows, length, "r") == [], "no token that differs is written yet"
        assert shadows.waits("r", "ngram")
    assert compare(shadows, START + at + 1, "r") == [("r", "ngram", 4, 4, 4, at)]
    assert not shadows.waits("r", "ngram")
    assert compare(shadows, len(WRITTEN), "r") == [], "an outcome is told once"


@pytest.mark.parametrize("at", range(4))
def test_a_step_that_writes_many_tokens_decides_as_single_steps_do(
    shadows: ShadowDrafts, at: int
) -> None:
    shadows.add("ngram", batch_of("r"), [with_difference(at)])
    assert compare(shadows, len(WRITTEN), "r") == [("r", "ngram", 4, 4, 4, at)]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_draft_that_agrees_waits_for_its_last_token(shadows: ShadowDrafts, count: int) -> None:
    shadows.add("ngram", batch_of("r"), [WRITTEN[START : START + count]])
    for length in range(START, START + count):
        assert compare(shadows, length, "r") == []
    assert compare(shadows, START + count, "r") == [("r", "ngram", 4, count, count, count)]


def test_a_proposer_that_finds_nothing_has_its_fate_at_once(shadows: ShadowDrafts) -> None:
    outcomes = shadows.add("ngram", batch_of("r", "s"), [[], [WRITTEN[START]]])
    assert outcomes == [("r", "ngram", 4, 0, 0, 0)]
    assert not shadows.waits("r", "ngram")
    assert compare(shadows, START + 1, "r", "s") == [("s", "ngram", 4, 1, 1, 1)]


def test_a_row_that_was_only_read_has_no_outcome(shadows: ShadowDrafts) -> None:
    assert shadows.add("small", batch_of("r", k=0), [[]]) == []
    assert compare(shadows, len(WRITTEN), "r") == []


@pytest.mark.parametrize("gone", [["r"], ("r", "never seen"), {"r"}])
def test_a_row_that_ends_or_is_preempted_takes_its_drafts_along(
    shadows: ShadowDrafts, gone: Sequence[str]
) -> None:
    shadows.add("ngram", batch_of("r", "s"), [with_difference(0), with_difference(0)])
    shadows.add("suffix", batch_of("r"), [with_difference(0)])
    shadows.forget(gone)
    assert not shadows.waits("r", "ngram")
    assert compare(shadows, START + 1, "r", "s") == [("s", "ngram", 4, 4, 4, 0)]


def test_a_row_outside_the_batch_waits(shadows: ShadowDrafts) -> None:
    shadows.add("ngram", batch_of("r", "s"), [with_difference(1), with_difference(1)])
    assert compare(shadows, len(WRITTEN), "s") == [("s", "ngram", 4, 4, 4, 1)]
    assert compare(shadows, len(WRITTEN), "r") == [("r", "ngram", 4, 4, 4, 1)]


def test_rows_and_proposers_are_kept_apart(shadows: ShadowDrafts) -> None:
    shadows.add("ngram", batch_of("r", "s"), [with_difference(2), with_difference(1)])
    shadows.add("suffix", batch_of("r", k=8), [with_difference(3)])
    assert sorted(compare(shadows, len(WRITTEN), "r", "s")) == [
        ("r", "ngram", 4, 4, 4, 2),
        ("r", "suffix", 8, 4, 4, 3),
        ("s", "ngram", 4, 4, 4, 1),
    ]
