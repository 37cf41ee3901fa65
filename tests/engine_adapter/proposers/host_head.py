"""The check of a method whose drafts come from a head that the engine runs."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import get_method
from tests.engine_adapter.proposers.batches import batch


class Head:
    """Drafts the row's index, after a lag of three tokens."""

    weights_bytes = 7

    def propose(self, batch: DraftBatch) -> Drafts:
        return Drafts([[i] * k for i, k in enumerate(batch.k.tolist())], catchup_tokens=3)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing to drop: it has no state."""


def check_it_drafts_with_the_hosts_head(spec: ProposerSpec, given: str) -> None:
    """Asserts that drafts, lag and weights are the head's; `given`: how a `DraftHost` gives it."""
    specs: list[ProposerSpec] = []

    def give(of: ProposerSpec) -> Head:
        specs.append(of)
        return Head()

    host: Any = SimpleNamespace(**{given: give})
    proposer = get_method(spec.method).create(spec, host)
    assert specs == [spec]
    drafts = proposer.propose(batch({"a": [1], "b": [2]}, k=[2, 1]))
    assert drafts == Drafts([[0, 0], [1]], catchup_tokens=3)
    assert proposer.weights_bytes == 7
