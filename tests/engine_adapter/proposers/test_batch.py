"""Selecting rows of a batch, truncating drafts to k, and merging drafts of several proposers."""

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.batch import DraftBatch, DraftCollector, Drafts
from tests.engine_adapter.proposers.batches import JUNK, batch

ROWS = {"a": [1, 2, 3], "b": [4, 5], "c": [6], "d": [7, 8]}


class RecordingSampler:
    """A `DraftSampler` that records the rows it was selected for."""

    def __init__(self, rows: npt.NDArray[np.intp]) -> None:
        self.rows = rows

    def select(self, index: npt.NDArray[np.intp]) -> "RecordingSampler":
        return RecordingSampler(self.rows[index])


def full_batch() -> DraftBatch:
    """A batch in which every field is set."""
    return replace(
        batch(ROWS, k=[4, 3, 2, 1], prompt=[1, 2, 1, 1], scattered=True),
        hidden=np.arange(8.0).reshape(4, 2),
        predicted=[np.array([i], np.int32) for i in range(4)],
        constraints=["of a", None, "of c", "of d"],  # type: ignore[list-item]
        sampling=RecordingSampler(np.arange(4)),  # type: ignore[arg-type]
        num_continued=np.array([0, 2, 1, 3]),
    )


def test_select_takes_every_field_of_the_selected_rows() -> None:
    given, index = full_batch(), np.array([2, 0])
    selected = given.select(index)
    for field in fields(DraftBatch):
        before, after = getattr(given, field.name), getattr(selected, field.name)
        assert before is not None, f"{field.name} is not set by this test"
        if field.name == "token_ids":
            assert after is before
        elif field.name == "sampling":
            assert after.rows.tolist() == [2, 0]
        else:
            np.testing.assert_array_equal(after, [before[2], before[0]])


def test_a_draft_follows_the_committed_tokens_and_those_that_it_continues() -> None:
    continued = full_batch()
    assert continued.prefix_lengths.tolist() == [3, 4, 2, 5]
    assert continued.prefix(1).tolist() == [4, 5, JUNK, JUNK]
    assert continued.context(1).tolist() == [4, 5]
    others = replace(continued, num_continued=None)
    assert others.prefix_lengths.tolist() == others.num_tokens.tolist()
    assert others.prefix(1).tolist() == others.context(1).tolist()


def test_select_replaces_k() -> None:
    assert full_batch().select(np.array([3, 1]), np.array([1, 2])).k.tolist() == [1, 2]


def test_truncate_limits_tokens_and_probabilities_to_k() -> None:
    tokens = [[1, 2, 3, 4, 5]] * 4
    rows = [np.eye(5)] * 4
    drafts = full_batch().truncate(tokens, rows)
    assert drafts.tokens == [[1, 2, 3, 4], [1, 2, 3], [1, 2], [1]]
    assert drafts.probabilities is not None
    assert [len(q) for q in drafts.probabilities] == [4, 3, 2, 1]
    assert full_batch().truncate(tokens).probabilities is None


def test_collected_drafts_are_those_of_each_row() -> None:
    collector = DraftCollector(4)
    collector.set(np.array([2, 0]), Drafts([[5], [6, 7]], catchup_tokens=3))
    collector.set(np.array([3]), Drafts([[]], catchup_tokens=4))
    assert collector.empty.tolist() == [False, True, False, True]
    assert collector.collect() == Drafts([[6, 7], (), [5], []], None, 7)


def test_collected_probabilities_are_none_for_one_hot_rows() -> None:
    collector = DraftCollector(3)
    collector.set(np.array([0]), Drafts([[5]]))
    collector.set(np.array([2]), Drafts([[6]], ["q"]))
    assert collector.collect().probabilities == [None, None, "q"]
