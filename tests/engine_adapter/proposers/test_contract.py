"""The contract of `Proposer`, tested for every method in `METHODS`."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import Proposer, ProposerMethod, ProposerSpec, no_check
from engine_adapter.proposers.methods import METHODS, parse_spec, parse_specs
from tests.engine_adapter.proposers.batches import batch
from tests.engine_adapter.proposers.heads import RandomTarget, medusa, mlp_speculator

ROWS: Mapping[str, Sequence[int]] = {
    "repeats": [1, 2, 3, 4] * 4,
    "short": [5],
    "varied": list(range(20, 60)),
    "long": [6, 6, 8, 9] * 20,
}


MEMBERS = parse_specs([{"name": "head", "method": "draft_model", "model": "a"}, {"name": "ngram"}])

TARGET = RandomTarget()
WEIGHTS = {"medusa": medusa(num_heads=8), "mlp_speculator": mlp_speculator(n_predict=8)}
"""Checkpoints of the methods that read their weights themselves."""
MODELS: dict[str, str] = {}
"""Method -> the folder of its checkpoint; filled by a fixture."""


@pytest.fixture(scope="module", autouse=True)
def models(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("models")
    MODELS.update({name: heads.write(folder / name) for name, heads in WEIGHTS.items()})


class LastTokens:
    """A member and a draft model: repeats the row's last tokens, newest first."""

    weights_bytes = 5
    num_speculative_tokens = 4
    draft_kv = True
    continues = True

    def draft(self, batch: DraftBatch, drafts: Sequence[Sequence[int]]) -> Drafts:
        prefixes = [[*batch.context(i).tolist(), *row] for i, row in enumerate(drafts)]
        return Drafts([p[::-1][:k] for p, k in zip(prefixes, batch.k.tolist(), strict=True)])

    def propose(self, batch: DraftBatch) -> Drafts:
        return self.draft(batch, [[] for _ in batch.rows])

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing to drop: it has no state."""


@dataclass(frozen=True)
class Forces:
    """A constraint that forces the row's own tokens once more."""

    tokens: Sequence[int]

    def forced(self, count: int) -> list[int]:
        return list(self.tokens[:count])


class Host:
    """Has `LastTokens` as draft model, head and member, and a target with random weights.

    Attributes:
        num_models: the models and heads that it was asked for.
    """

    target = TARGET
    num_models = 0

    def member(self, name: str) -> LastTokens:
        return LastTokens()

    def draft_model(self, spec: ProposerSpec) -> LastTokens:
        self.num_models += 1
        return LastTokens()

    draft_head = draft_model
    block_head = draft_model
    query_head = draft_model


@pytest.fixture(params=METHODS, ids=lambda method: method.name)
def method(request: pytest.FixtureRequest) -> ProposerMethod:
    """Each method in turn."""
    chosen: ProposerMethod = request.param
    if chosen.name == "suffix":
        pytest.importorskip("arctic_inference.suffix_decoding")
    return chosen


def spec_of(method: ProposerMethod) -> ProposerSpec:
    return parse_spec({"name": "x", "method": method.name, **required(method)}, MEMBERS)


def required(method: ProposerMethod) -> dict[str, Any]:
    """The fields that are required to configure the method."""
    model = {"model": MODELS.get(method.name, "a/b")} if method.capabilities.model else {}
    return model | ({"members": ["head", "ngram"]} if method.capabilities.members else {})


def create(method: ProposerMethod) -> Proposer:
    return method.create(spec_of(method), Host())


def batch_for(method: ProposerMethod, rows: Mapping[str, Sequence[int]], **how: Any) -> DraftBatch:
    """A batch of the rows, with all that the method needs beside their tokens."""
    return batch(
        rows,
        hidden_of=TARGET.hidden_of if method.capabilities.hidden_states else None,
        predicted=list(rows.values()) if method.capabilities.prediction else None,
        constraints=[Forces(r) for r in rows.values()] if method.capabilities.constraint else None,
        **how,
    )


def propose(
    method: ProposerMethod, proposer: Proposer, rows: Mapping[str, Sequence[int]], **how: Any
) -> list[list[int]]:
    return [list(row) for row in proposer.propose(batch_for(method, rows, **how)).tokens]


def test_the_default_spec_is_valid_and_has_this_method(method: ProposerMethod) -> None:
    spec = spec_of(method)
    method.validate(spec)
    assert spec.method == method.name
    assert spec.num_speculative_tokens >= 1
    assert method.capabilities.members == callable(method.default_k)


def test_the_size_of_its_weights_is_known(method: ProposerMethod) -> None:
    size = create(method).weights_bytes
    assert type(size) is int
    assert size >= 0


def test_a_method_with_draft_kv_checks_the_weights_that_it_runs(method: ProposerMethod) -> None:
    assert method.check is not no_check or not method.capabilities.draft_kv


def test_a_method_that_runs_a_model_says_so(method: ProposerMethod) -> None:
    """Otherwise its drafts are drawn without regard to what their requests allow."""
    host = Host()
    method.create(spec_of(method), host)
    assert method.capabilities.runs_model == bool(host.num_models or method.name in WEIGHTS)


@pytest.mark.parametrize("k", [1, 2, 8, 100])
def test_every_row_gets_at_most_k_tokens_as_python_integers(method: ProposerMethod, k: int) -> None:
    drafts = propose(method, create(method), ROWS, k=k)
    assert len(drafts) == len(ROWS)
    for row in drafts:
        assert len(row) <= k
        assert all(type(token) is int and token >= 0 for token in row)


def test_a_row_that_repeats_a_pattern_gets_drafts(method: ProposerMethod) -> None:
    assert propose(method, create(method), {"r": ROWS["repeats"]})[0]


def test_no_row_gets_more_drafts_than_its_own_k(method: ProposerMethod) -> None:
    drafts = propose(method, create(method), ROWS, k=[1, 3, 5, 2])
    assert all(len(row) <= k for row, k in zip(drafts, [1, 3, 5, 2], strict=True))


def test_a_rows_drafts_depend_only_on_that_row(method: ProposerMethod) -> None:
    together = propose(method, create(method), ROWS, k=[4, 2, 3, 4])
    for i, ((name, tokens), k) in enumerate(zip(ROWS.items(), [4, 2, 3, 4], strict=True)):
        assert propose(method, create(method), {name: tokens}, k=k) == [together[i]]


def test_a_rows_index_in_the_engines_batch_does_not_matter(method: ProposerMethod) -> None:
    assert propose(method, create(method), ROWS) == propose(
        method, create(method), ROWS, scattered=True
    )


def test_nothing_after_a_rows_last_token_is_read(method: ProposerMethod) -> None:
    rows = {"r": ROWS["repeats"], "s": [1, 2, 1]}
    drafts = [propose(method, create(method), rows, junk=junk) for junk in (7, 8)]
    assert drafts[0] == drafts[1]


def test_the_batch_is_not_changed(method: ProposerMethod) -> None:
    given = batch_for(method, ROWS)
    before = {name: deepcopy(getattr(given, name)) for name in given.__slots__}
    create(method).propose(given)
    for name, value in before.items():
        if name == "predicted":
            np.testing.assert_equal(given.predicted, value)
        else:
            np.testing.assert_array_equal(getattr(given, name), value)


def test_a_proposer_called_in_every_step_has_no_lag(method: ProposerMethod) -> None:
    proposer, tokens = create(method), list(ROWS["long"])
    for length in range(4, 30):
        computed = [length - 1 if length > 4 else 0]
        drafts = proposer.propose(
            batch_for(method, {"r": tokens[:length]}, prompt=4, computed=computed)
        )
        assert drafts.catchup_tokens == 0


def test_forget_accepts_known_unknown_and_repeated_ids(method: ProposerMethod) -> None:
    proposer = create(method)
    proposer.forget(["unknown"])
    propose(method, proposer, ROWS)
    proposer.forget(list(ROWS))
    proposer.forget(list(ROWS))
    proposer.forget([])
    assert len(propose(method, proposer, ROWS)) == len(ROWS)


def test_a_forgotten_id_can_be_used_by_another_request(method: ProposerMethod) -> None:
    proposer = create(method)
    propose(method, proposer, {"r": ROWS["varied"]})
    proposer.forget(["r"])
    again = propose(method, proposer, {"r": ROWS["repeats"]}, prompt=16)
    assert again == propose(method, create(method), {"r": ROWS["repeats"]}, prompt=16)
