"""The proposers of an engine: loading, unloading, latency and quarantine."""

from typing import Any

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.registries.proposer_registry import ProposerRegistry
from engine_adapter.seam.counts import StepKind, StepReport
from engine_adapter.seam.errors import EngineConfigError, ProposerRefused

NGRAM = {"name": "ngram", "num_speculative_tokens": 5}
DRAFT = {"name": "small", "method": "draft_model", "model": "a/b"}
CASCADE = {"name": "cascade", "members": ["ngram", "small"]}


@pytest.fixture
def registry() -> ProposerRegistry:
    made = ProposerRegistry(parse_specs([NGRAM, DRAFT, CASCADE]), capacity=5)
    made.on_engine_started([{"small": (100, 40)}, {"small": (100, 40)}])
    return made


def step(**changes: Any) -> StepReport:
    return StepReport(
        StepKind.DECODE,
        0.1,
        {},
        **({"draft_seconds": {}, "proposed_tokens": {}, "catchup_tokens": {}} | changes),
    )


def refusal(call: Any, *args: Any) -> str:
    with pytest.raises(ProposerRefused) as caught:
        call(*args)
    return caught.value.code


def test_memory_is_summed_over_the_ranks(registry: ProposerRegistry) -> None:
    small = registry.infos[1]
    assert (small.weights_bytes, small.kv_bytes, small.tensor_parallel_size) == (200, 80, 2)
    assert (registry.infos[0].weights_bytes, registry.infos[0].tensor_parallel_size) == (0, 1)


def test_the_next_process_starts_with_the_loaded_proposers(registry: ProposerRegistry) -> None:
    spec = registry.check_load({"name": "lookup", "method": "ngram"})
    assert registry.add(spec, [{}]).state == "loaded"
    registry.remove("cascade")
    assert [spec.name for spec in registry.specs] == ["ngram", "small", "lookup"]
    registry.on_engine_started([{}])
    assert [info.name for info in registry.infos] == ["ngram", "small", "lookup"]


@pytest.mark.parametrize(
    ("fields", "code"), [(NGRAM, "proposer_exists"), (DRAFT | {"name": "x"}, "needs_restart")]
)
def test_a_load_that_is_not_possible_now_is_refused(
    registry: ProposerRegistry, fields: dict[str, Any], code: str
) -> None:
    assert refusal(registry.check_load, fields) == code


def test_a_k_above_the_capacity_names_the_field_and_the_flag(registry: ProposerRegistry) -> None:
    with pytest.raises(EngineConfigError, match="--max-speculative-tokens") as caught:
        registry.check_load({"name": "suffix", "num_speculative_tokens": 6})
    assert caught.value.field == "num_speculative_tokens"


def test_a_cascade_of_proposers_with_kv_can_be_loaded(registry: ProposerRegistry) -> None:
    spec = registry.check_load({"name": "c", "method": "cascade", "members": ["small", "ngram"]})
    assert spec.num_speculative_tokens == 5


def test_members_cannot_be_unloaded_before_their_cascade(registry: ProposerRegistry) -> None:
    assert refusal(registry.check_unload, "ngram") == "proposer_in_use"
    registry.check_unload("cascade")
    registry.remove("cascade")
    registry.check_unload("ngram")
    assert refusal(registry.check_unload, "cascade") == "proposer_not_found"


def test_a_proposer_with_its_own_kv_cannot_be_unloaded(registry: ProposerRegistry) -> None:
    registry.remove("cascade")
    assert refusal(registry.check_unload, "small") == "needs_restart"


def test_only_one_proposer_loads_at_a_time_and_is_shown_last(registry: ProposerRegistry) -> None:
    registry.loading = registry.check_load({"name": "suffix", "num_speculative_tokens": 5})
    assert refusal(registry.check_load, {"name": "x", "method": "ngram"}) == "load_in_progress"
    assert refusal(registry.check_unload, "cascade") == "load_in_progress"
    assert [(i.name, i.state) for i in registry.snapshot()][-1] == ("suffix", "loading")
    assert "suffix" not in [info.name for info in registry.infos]


def test_a_new_process_starts_without_latencies(registry: ProposerRegistry) -> None:
    registry.record_step(step(draft_seconds={"ngram": 0.5}, proposed_tokens={"ngram": 5}))
    assert registry.snapshot()[0].draft_latency_ms == 100
    registry.on_engine_started([{}])
    assert registry.snapshot()[0].draft_latency_ms is None


def test_latency_is_the_mean_per_drafted_token(registry: ProposerRegistry) -> None:
    registry.record_step(step(draft_seconds={"ngram": 0.002}, proposed_tokens={"ngram": 4}))
    registry.record_step(step(draft_seconds={"ngram": 0.004}, proposed_tokens={"ngram": 2}))
    shown = {info.name: info.draft_latency_ms for info in registry.snapshot()}
    assert shown["ngram"] == pytest.approx(1.0)
    assert shown["small"] is None
    registry.remove("cascade")
    registry.remove("ngram")
    registry.add(parse_specs([NGRAM])[0], [])
    assert registry.snapshot()[-1].draft_latency_ms is None, (
        "a proposer with an old name starts without latency"
    )


def test_quarantine_is_shown_until_the_next_process_starts(registry: ProposerRegistry) -> None:
    report = step(faults={"ngram": "ValueError: x", "small": "y"}, quarantined=("ngram",))
    registry.record_step(report)
    states = [(info.state, info.last_error) for info in registry.infos]
    assert states == [("quarantined", "ValueError: x"), ("loaded", None), ("loaded", None)]
    registry.on_engine_started([{}])
    assert {info.state for info in registry.infos} == {"loaded"}
