"""The draft-model proposer: it cuts what the engine's draft model says to each row's k."""

import numpy as np
import pytest

from engine_adapter.errors import EngineConfigError
from engine_adapter.proposers.catalog import parse_spec
from engine_adapter.proposers.contract import DraftBatch, ProposerSpec
from engine_adapter.proposers.draft_model import METHOD
from tests.engine_adapter.proposers.batches import batch

SPEC = parse_spec({"name": "small", "method": "draft_model", "model": "a/b"})


class CountingModel:
    """Drafts 10 * row + position, up to the batch's largest k."""

    catchup_tokens = 6

    def draft(self, batch: DraftBatch) -> np.ndarray:
        width = int(batch.k.max())
        return 10 * np.arange(len(batch.rows))[:, None] + np.arange(width)


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


def test_each_row_keeps_to_its_own_k() -> None:
    rows = {"a": [1], "b": [1, 2], "c": [3]}
    proposed = METHOD.create(SPEC, Host()).propose(batch(rows, k=[3, 0, 1]))
    assert [list(row) for row in proposed] == [[0, 1, 2], [], [20]]


def test_proposed_tokens_are_plain_integers() -> None:
    (row,) = METHOD.create(SPEC, Host()).propose(batch({"a": [1]}))
    assert all(type(token) is int for token in row)


def test_the_lag_is_the_draft_models() -> None:
    assert METHOD.create(SPEC, Host()).catchup_tokens == 6


def test_a_model_is_required() -> None:
    with pytest.raises(EngineConfigError, match="model"):
        parse_spec({"name": "small", "method": "draft_model"})
