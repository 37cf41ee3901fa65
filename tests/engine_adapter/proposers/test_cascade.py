"""Who of a cascade's members drafts for which row, and who is left alone."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.cascade import CascadeProposer
from tests.engine_adapter.proposers.batches import batch

ROWS = {"r": [1, 2, 3], "s": [4, 5], "t": [6], "u": [7, 8, 9]}


class Teller:
    """A member that drafts `tag` for the rows that it knows; remembers what it was asked."""

    def __init__(
        self,
        tag: int,
        knows: str = "rstu",
        k: int = 5,
        draft_kv: bool = False,
        probability: float | None = None,
    ) -> None:
        self.tag, self.knows = tag, knows
        self.num_speculative_tokens, self.draft_kv = k, draft_kv
        self.probability = probability
        self.batches: list[DraftBatch] = []

    @property
    def asked(self) -> list[Mapping[str, int]]:
        """Request id -> k, of each call."""
        return [dict(zip(b.request_ids, b.k.tolist(), strict=True)) for b in self.batches]

    def draft(self, batch: DraftBatch) -> Drafts:
        self.batches.append(batch)
        ks = zip(batch.request_ids, batch.k.tolist(), strict=True)
        tokens = [[self.tag] * (k if name in self.knows else 0) for name, k in ks]
        sampled = None if self.probability is None else [self.probability for _ in tokens]
        return Drafts(tokens, sampled, catchup_tokens=self.tag)


def propose(members: Sequence[Teller], k: int | Sequence[int] = 4) -> Drafts:
    return CascadeProposer(members).propose(batch(ROWS, k=k, scattered=True))


def test_the_first_member_that_has_a_draft_gives_it() -> None:
    first, second, third = Teller(1, "s"), Teller(2, "rs"), Teller(3, "t")
    assert propose([first, second, third], k=2).tokens == [[2, 2], [1, 1], [3, 3], []]


def test_a_member_is_asked_for_the_rows_alone_that_nobody_before_had_a_draft_for() -> None:
    first, second, third = Teller(1, "s"), Teller(2, "rtu"), Teller(3)
    propose([first, second, third])
    assert [set(asked) for asked in second.asked] == [{"r", "t", "u"}]
    assert third.asked == []


def test_what_a_later_member_reads_is_that_of_its_rows() -> None:
    first, second = Teller(1, "rt"), Teller(2)
    propose([first, second])
    (given,) = second.batches
    assert [given.context(i).tolist() for i in range(2)] == [ROWS["s"], ROWS["u"]]
    assert given.num_tokens.tolist() == [2, 3]
    assert given.num_computed.tolist() == [1, 2]


def test_a_member_drafts_at_most_its_own_k_and_the_request_caps_both() -> None:
    first, second = Teller(1, "rs", k=2), Teller(2, k=4)
    drafts = propose([first, second], k=[5, 1, 5, 3])
    assert drafts.tokens == [[1, 1], [1], [2] * 4, [2] * 3]


def test_rows_in_mid_prompt_are_read_along_by_every_member_with_kv_and_no_other() -> None:
    lookup, model, another = Teller(1, ""), Teller(2, draft_kv=True), Teller(3, draft_kv=True)
    drafts = propose([lookup, model, another], k=[0, 3, 0, 0])
    assert lookup.asked == [{"s": 3}]
    assert model.asked == [{"r": 0, "s": 3, "t": 0, "u": 0}]
    assert another.asked == [{"r": 0, "t": 0, "u": 0}]
    assert drafts.tokens == [[], [2, 2, 2], [], []]


def test_where_no_member_is_needed_none_is_asked() -> None:
    lookup, model = Teller(1), Teller(2, draft_kv=True)
    propose([lookup, model])
    assert model.asked == []
    propose([lookup], k=0)
    assert len(lookup.asked) == 1


def test_lags_add_up_and_sampled_rows_keep_their_probabilities() -> None:
    drafts = propose([Teller(10, "s"), Teller(20, "ru", probability=0.5)])
    assert drafts.catchup_tokens == 30
    assert drafts.probabilities == [0.5, None, 0.5, 0.5]
    assert propose([Teller(1)]).probabilities is None


@pytest.mark.parametrize("k", [0, 1, 7])
def test_a_members_rows_stand_where_the_engine_has_them(k: int) -> None:
    first, second = Teller(1, "r", draft_kv=True), Teller(2, draft_kv=True)
    given = batch(ROWS, k=k, scattered=True)
    CascadeProposer([first, second]).propose(given)
    for asked in (*first.batches, *second.batches):
        at = [list(ROWS).index(name) for name in asked.request_ids]
        np.testing.assert_array_equal(asked.rows, given.rows[at])
