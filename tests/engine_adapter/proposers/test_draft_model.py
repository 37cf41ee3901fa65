"""The draft-model proposer: it cuts what the engine's draft model says to each row's k."""

import pytest

from engine_adapter.errors import EngineConfigError
from engine_adapter.proposers.catalog import parse_spec
from engine_adapter.proposers.contract import DraftBatch, Drafts, ProposerSpec
from engine_adapter.proposers.draft_model import METHOD
from tests.engine_adapter.proposers.batches import batch

SPEC = parse_spec({"name": "small", "method": "draft_model", "model": "a/b"})


class CountingModel:
    """Drafts 10 * row + position for each row, after a lag of six tokens."""

    def draft(self, batch: DraftBatch) -> Drafts:
        tokens = [[10 * i + depth for depth in range(k)] for i, k in enumerate(batch.k.tolist())]
        return Drafts(tokens, catchup_tokens=6)


class Host:
    """Lends one draft model and remembers for whom."""

    def __init__(self) -> None:
        self.asked: list[ProposerSpec] = []

    def draft_model(self, spec: ProposerSpec) -> CountingModel:
        self.asked.append(spec)
        return CountingModel()


def test_the_host_is_asked_for_the_specs_model() -> None:
    host = Host()
    METHOD.create(SPEC, host)
    assert host.asked == [SPEC]


def test_drafts_and_lag_are_the_draft_models() -> None:
    rows = {"a": [1], "b": [1, 2], "c": [3]}
    drafts = METHOD.create(SPEC, Host()).propose(batch(rows, k=[3, 0, 1]))
    assert drafts == Drafts([[0, 1, 2], [], [20]], catchup_tokens=6)


def test_a_model_is_required() -> None:
    with pytest.raises(EngineConfigError, match="model"):
        parse_spec({"name": "small", "method": "draft_model"})
