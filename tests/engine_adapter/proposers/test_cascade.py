"""The cascade and the chain: which member drafts for which row, and which rows it gets."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.cascade import CascadeProposer
from tests.engine_adapter.proposers.batches import batch

ROWS = {"r": [1, 2, 3], "s": [4, 5], "t": [6], "u": [7, 8, 9]}


class RecordingMember:
    """A member that drafts `tag` for the rows in `knows`, and records its batches."""

    def __init__(
        self,
        tag: int,
        knows: str = "rstu",
        k: int = 5,
        draft_kv: bool = False,
        continues: bool = False,
        probability: float | None = None,
    ) -> None:
        self.tag, self.knows = tag, knows
        self.num_speculative_tokens, self.draft_kv, self.continues = k, draft_kv, continues
        self.probability = probability
        self.batches: list[DraftBatch] = []
        self.continued: list[Mapping[str, Sequence[int]]] = []

    @property
    def calls(self) -> list[Mapping[str, int]]:
        """Request id -> k, of each call."""
        return [dict(zip(b.request_ids, b.k.tolist(), strict=True)) for b in self.batches]

    def draft(self, batch: DraftBatch, drafts: Sequence[Sequence[int]]) -> Drafts:
        self.batches.append(batch)
        self.continued.append(dict(zip(batch.request_ids, drafts, strict=True)))
        ks = zip(batch.request_ids, batch.k.tolist(), strict=True)
        tokens = [[self.tag] * (k if name in self.knows else 0) for name, k in ks]
        self.last_tokens = tokens
        sampled = None if self.probability is None else [self.probability for _ in tokens]
        return Drafts(tokens, sampled, catchup_tokens=self.tag)


def lookup(tag: int, knows: str = "rstu", k: int = 5) -> RecordingMember:
    """A member that can continue the drafts of others."""
    return RecordingMember(tag, knows, k, continues=True)


def propose(
    members: Sequence[RecordingMember], k: int | Sequence[int] = 4, *, is_chain: bool = False
) -> Drafts:
    return CascadeProposer(members, is_chain=is_chain).propose(batch(ROWS, k=k, scattered=True))


def test_the_first_member_with_a_draft_for_a_row_drafts_for_it() -> None:
    first, second, third = (
        RecordingMember(1, "s"),
        RecordingMember(2, "rs"),
        RecordingMember(3, "t"),
    )
    assert propose([first, second, third], k=2).tokens == [[2, 2], [1, 1], [3, 3], []]


def test_a_later_member_gets_only_rows_without_a_draft() -> None:
    first, second, third = RecordingMember(1, "s"), RecordingMember(2, "rtu"), RecordingMember(3)
    propose([first, second, third])
    assert [set(call) for call in second.calls] == [{"r", "t", "u"}]
    assert third.calls == []


def test_a_later_member_gets_the_tokens_of_its_own_rows() -> None:
    first, second = RecordingMember(1, "rt"), RecordingMember(2)
    propose([first, second])
    (given,) = second.batches
    assert [given.context(i).tolist() for i in range(2)] == [ROWS["s"], ROWS["u"]]
    assert given.num_tokens.tolist() == [2, 3]
    assert given.num_computed.tolist() == [1, 2]


def test_a_members_k_is_capped_by_its_own_and_the_requests_k() -> None:
    first, second = RecordingMember(1, "rs", k=2), RecordingMember(2, k=4)
    drafts = propose([first, second], k=[5, 1, 5, 3])
    assert drafts.tokens == [[1, 1], [1], [2] * 4, [2] * 3]


def test_rows_in_mid_prompt_go_to_every_member_with_kv_and_no_other() -> None:
    lookup, model, another = (
        RecordingMember(1, ""),
        RecordingMember(2, draft_kv=True),
        RecordingMember(3, draft_kv=True),
    )
    drafts = propose([lookup, model, another], k=[0, 3, 0, 0])
    assert lookup.calls == [{"s": 3}]
    assert model.calls == [{"r": 0, "s": 3, "t": 0, "u": 0}]
    assert another.calls == [{"r": 0, "t": 0, "u": 0}]
    assert drafts.tokens == [[], [2, 2, 2], [], []]


def test_a_member_without_rows_is_not_called() -> None:
    lookup, model = RecordingMember(1), RecordingMember(2, draft_kv=True)
    propose([lookup, model])
    assert model.calls == []
    propose([lookup], k=0)
    assert len(lookup.calls) == 1


def test_lags_add_up() -> None:
    drafts = propose([RecordingMember(10, "s"), RecordingMember(20, "ru")])
    assert drafts.catchup_tokens == 30


def test_distributions_of_drafts_are_left_to_the_members_calls() -> None:
    """The engine stores them there; a continued draft has none for its last tokens."""
    sampled = RecordingMember(20, "ru", probability=0.5)
    assert propose([RecordingMember(10, "s"), sampled]).probabilities is None


# -- chains ------------------------------------------------------------------------------------


def test_a_lookup_continues_the_drafts_of_the_members_before_it() -> None:
    head, tail = RecordingMember(1, "rs", k=2), lookup(2, "rt")
    drafts = propose([head, tail], k=4, is_chain=True)
    assert drafts.tokens == [[1, 1, 2, 2], [1, 1], [2] * 4, []]
    assert tail.continued == [{"r": [1, 1], "s": [1, 1], "t": [], "u": []}]
    assert tail.calls == [{"r": 2, "s": 2, "t": 4, "u": 4}]


def test_a_lookup_in_a_cascade_continues_nothing() -> None:
    head, tail = RecordingMember(1, "rs", k=2), lookup(2, "rt")
    assert propose([head, tail], k=4).tokens == [[1, 1], [1, 1], [2] * 4, []]
    assert tail.continued == [{"t": [], "u": []}]


def test_a_model_in_a_chain_drafts_where_the_members_before_it_found_nothing() -> None:
    first, model = lookup(1, "rs", k=1), RecordingMember(2, k=3)
    assert propose([first, model], k=4, is_chain=True).tokens == [[1], [1], [2] * 3, [2] * 3]
    assert model.continued == [{"t": [], "u": []}]


def test_the_drafts_of_all_members_together_are_at_most_the_requests_k() -> None:
    head, tail = RecordingMember(1, k=3), lookup(2, k=2)
    drafts = propose([head, tail], k=[9, 4, 3, 2], is_chain=True)
    assert drafts.tokens == [[1, 1, 1, 2, 2], [1, 1, 1, 2], [1] * 3, [1] * 2]
    assert tail.calls == [{"r": 2, "s": 1}]


def test_a_lookup_that_comes_twice_continues_what_followed_its_first_call() -> None:
    twice, head = lookup(1, "r", k=2), RecordingMember(2, "st", k=1)
    drafts = propose([twice, head, twice], k=5, is_chain=True)
    assert drafts.tokens == [[1] * 4, [2], [2], []]
    assert twice.continued[1] == {"r": [1, 1], "s": [2], "t": [2], "u": []}


def test_a_draft_that_nothing_continues_is_left_as_it_is() -> None:
    """A model's may be on the device, and to read it would wait."""
    head = RecordingMember(1)
    tokens = propose([head, lookup(2, "")], k=9, is_chain=True).tokens
    assert all(tokens[i] is row for i, row in enumerate(head.last_tokens))


def test_rows_in_mid_prompt_are_read_by_a_chains_member_with_kv() -> None:
    head, tail = RecordingMember(1, draft_kv=True), lookup(2)
    assert propose([head, tail], k=[0, 9, 0, 0], is_chain=True).tokens[0] == []
    assert head.calls == [{"r": 0, "s": 5, "t": 0, "u": 0}]
    assert tail.calls == [{"s": 4}]


@pytest.mark.parametrize("k", [0, 1, 7])
def test_a_members_rows_keep_their_indices_in_the_engines_batch(k: int) -> None:
    first, second = RecordingMember(1, "r", draft_kv=True), RecordingMember(2, draft_kv=True)
    given = batch(ROWS, k=k, scattered=True)
    CascadeProposer([first, second]).propose(given)
    for received in (*first.batches, *second.batches):
        at = [list(ROWS).index(name) for name in received.request_ids]
        np.testing.assert_array_equal(received.rows, given.rows[at])
