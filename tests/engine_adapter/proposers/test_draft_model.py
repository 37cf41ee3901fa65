"""The method `draft_model`: the engine runs the model; options and sizes are checked."""

from collections.abc import Sequence

import pytest

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import ProposerSpec, TargetSizes
from engine_adapter.proposers.draft_model import METHOD
from engine_adapter.proposers.methods import parse_spec
from engine_adapter.seam.errors import EngineConfigError
from tests.engine_adapter.proposers.batches import batch

SPEC = parse_spec({"name": "small", "method": "draft_model", "model": "a/b"})


class CountingModel:
    """Drafts 10 * row + position for each row, after a lag of six tokens."""

    weights_bytes = 7

    def propose(self, batch: DraftBatch) -> Drafts:
        tokens = [[10 * i + depth for depth in range(k)] for i, k in enumerate(batch.k.tolist())]
        return Drafts(tokens, catchup_tokens=6)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing to drop: it has no state."""


class Host:
    """Gives a draft model for each spec, and records the specs."""

    def __init__(self) -> None:
        self.specs: list[ProposerSpec] = []

    def draft_model(self, spec: ProposerSpec) -> CountingModel:
        self.specs.append(spec)
        return CountingModel()


def test_the_host_provides_the_model_of_the_spec() -> None:
    host = Host()
    METHOD.create(SPEC, host)  # type: ignore[arg-type]
    assert host.specs == [SPEC]


def test_drafts_and_lag_are_those_of_the_hosts_model() -> None:
    rows = {"a": [1], "b": [1, 2], "c": [3]}
    proposer = METHOD.create(SPEC, Host())  # type: ignore[arg-type]
    drafts = proposer.propose(batch(rows, k=[3, 0, 1]))
    assert drafts == Drafts([[0, 1, 2], [], [20]], catchup_tokens=6)


def test_a_model_is_required() -> None:
    with pytest.raises(EngineConfigError, match="model"):
        parse_spec({"name": "small", "method": "draft_model"})


# -- tensor parallelism ----------------------------------------------------------------------


def sized(size: object) -> ProposerSpec:
    fields = {"name": "small", "method": "draft_model", "model": "a/b"}
    return parse_spec({**fields, "draft_tensor_parallel_size": size})


@pytest.mark.parametrize("size", [None, 1, 2])
def test_tensor_parallel_size_1_or_the_targets_is_valid(size: int | None) -> None:
    METHOD.check(sized(size), TargetSizes(8, 9, tensor_parallel_size=2))


@pytest.mark.parametrize(("size", "of_target"), [(2, 1), (3, 2), (2, 4)])
def test_any_other_tensor_parallel_size_is_refused(size: int, of_target: int) -> None:
    target = TargetSizes(8, 9, tensor_parallel_size=of_target)
    said = f"draft_tensor_parallel_size must be 1 or the target's {of_target}, got {size}"
    with pytest.raises(ValueError, match=said):
        METHOD.check(sized(size), target)


@pytest.mark.parametrize("size", [0, -1, "2", True, 1.0])
def test_a_tensor_parallel_size_must_be_a_positive_integer(size: object) -> None:
    with pytest.raises(EngineConfigError, match="draft_tensor_parallel_size must be an integer"):
        sized(size)


# -- another tokenizer -----------------------------------------------------------------------


def mapping(value: object) -> ProposerSpec:
    fields = {"name": "small", "method": "draft_model", "model": "a/b"}
    return parse_spec({**fields, "use_heterogeneous_vocab": value})


def test_another_tokenizer_is_allowed_only_by_its_option() -> None:
    assert SPEC.options["use_heterogeneous_vocab"] is False
    assert mapping(True).options["use_heterogeneous_vocab"] is True


@pytest.mark.parametrize("value", [1, "true", None, []])
def test_the_option_is_true_or_false(value: object) -> None:
    with pytest.raises(EngineConfigError, match="must be true or false") as caught:
        mapping(value)
    assert caught.value.field == "use_heterogeneous_vocab"
