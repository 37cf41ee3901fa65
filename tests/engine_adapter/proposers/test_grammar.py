"""The grammar proposer: drafts what each row's constraint forces, up to the row's k."""

from collections.abc import Sequence

import numpy as np
import pytest

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.cascade import CascadeProposer
from engine_adapter.proposers.grammar import METHOD
from engine_adapter.proposers.methods import parse_spec
from engine_adapter.seam.errors import EngineConfigError
from tests.engine_adapter.proposers.batches import batch
from tests.engine_adapter.proposers.test_contract import Forces, LastTokens


class Asked:
    """The grammar proposer as the member of a cascade."""

    num_speculative_tokens = 2
    draft_kv = False
    continues = False

    def __init__(self) -> None:
        self._proposer = METHOD.create(parse_spec({"name": "grammar"}), None)  # type: ignore[arg-type]

    def draft(self, batch: DraftBatch, drafts: Sequence[Sequence[int]]) -> Drafts:
        return self._proposer.propose(batch)


ROWS: dict[str, Sequence[int]] = {"forced": [1, 2], "free": [3, 4], "open": [5, 6]}
CONSTRAINTS = [Forces([7, 8, 9]), None, Forces([])]


def test_each_row_gets_what_its_own_constraint_forces() -> None:
    proposer = METHOD.create(parse_spec({"name": "grammar"}), None)  # type: ignore[arg-type]
    given = batch(ROWS, k=[2, 5, 5], constraints=CONSTRAINTS)
    assert proposer.propose(given).tokens == [[7, 8], [], []]
    assert proposer.propose(given.select(np.array([2, 0]))).tokens == [[], [7, 8]]


def test_without_constraints_there_are_no_drafts() -> None:
    proposer = METHOD.create(parse_spec({"name": "grammar"}), None)  # type: ignore[arg-type]
    assert proposer.propose(batch(ROWS)).tokens == [[], [], []]


def test_in_a_cascade_the_next_member_drafts_where_nothing_is_forced() -> None:
    cascade = CascadeProposer([Asked(), LastTokens()])
    drafts = cascade.propose(batch(ROWS, k=4, constraints=CONSTRAINTS))
    assert drafts.tokens == [[7, 8], [4, 3], [6, 5]]


def test_it_has_no_options_and_no_weights() -> None:
    with pytest.raises(EngineConfigError, match="grammar has no such field"):
        parse_spec({"name": "grammar", "prompt_lookup_min": 1})
    with pytest.raises(EngineConfigError, match="grammar has no weights"):
        parse_spec({"name": "grammar", "model": "a/b"})
    assert parse_spec({"name": "grammar"}).num_speculative_tokens == 8
