"""What several engines show as one: figures, metrics, policies."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from demo import model_path
from engine_adapter.data_parallel.engine import DataParallelEngine
from engine_adapter.data_parallel.merging import MergedProposers, merged
from engine_adapter.data_parallel.proposer_changes import fields_of
from engine_adapter.proposers.methods import parse_spec
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.counts import CompiledGrammars, PolicyStep, StepKind, StepReport
from engine_adapter.seam.errors import EngineDead
from engine_adapter.seam.factory import create_engine
from engine_adapter.seam.types import ProposerInfo, ProposerState, SpecMethod
from tests.engine_adapter.data_parallel.conftest import StartFleet
from tests.engine_adapter.data_parallel.fleet import ENDLESS, SLOW, Fleet
from tests.engine_adapter.fake.harness import Reports, make_request
from tests.server.gateway import eventually

INFO = ProposerInfo("a", "ngram", None, 3)


def test_the_setting_makes_as_many_engines() -> None:
    arguments = {"data_parallel_size": 3}
    config = EngineConfig(str(model_path("target")), "m", arguments=arguments)
    engine = create_engine("fake", config, CollectorRegistry(), Reports())
    assert isinstance(engine, DataParallelEngine)
    assert engine.failures == (None, None, None)


@pytest.mark.parametrize("size", [None, 1])
def test_one_engine_stands_for_itself(size: int | None) -> None:
    config = EngineConfig("m", "m", arguments={"data_parallel_size": size})
    engine = create_engine("fake", config, CollectorRegistry(), Reports())
    assert not isinstance(engine, DataParallelEngine)
    assert engine.failures == (None,)


async def test_all_engines_together_run_more_sequences(start: StartFleet) -> None:
    fleet = await start(own={1: {"max_model_len": 512}}, max_num_seqs=8)
    info = fleet.engine.info
    assert (info.max_num_seqs, info.max_model_len) == (16, 512)
    assert fleet.engine.info.proposers is info.proposers, "every request asks for them"


def test_memory_is_summed_and_latencies_are_averaged() -> None:
    one = replace(INFO, weights_bytes=5, kv_bytes=7, draft_latency_ms=2.0)
    both = merged([one, replace(one, draft_latency_ms=4.0)])
    assert (both.weights_bytes, both.kv_bytes, both.draft_latency_ms) == (10, 14, 3.0)
    assert merged([one, replace(one, draft_latency_ms=None)]).draft_latency_ms == 2.0
    assert merged([INFO, INFO]).draft_latency_ms is None


def test_a_proposer_that_is_quarantined_at_one_engine_is_shown_so() -> None:
    bad = replace(INFO, state=ProposerState.QUARANTINED, last_error="why")
    for pair in ([INFO, bad], [bad, INFO]):
        assert (merged(pair).state, merged(pair).last_error) == (ProposerState.QUARANTINED, "why")


def test_only_proposers_that_all_engines_have_can_be_chosen() -> None:
    b, c = replace(INFO, name="b"), replace(INFO, name="c", state=ProposerState.LOADING)
    shown = MergedProposers().merge(((INFO, b), (INFO, c)))
    assert [(info.name, info.state) for info in shown] == [("a", "loaded"), ("c", "loading")]


def test_merged_proposers_follow_every_engine() -> None:
    proposers, first, second = MergedProposers(), (INFO,), (replace(INFO, kv_bytes=1),)
    assert proposers.merge((first, first))[0].kv_bytes == 0
    assert proposers.merge((first, second))[0].kv_bytes == 1
    assert proposers.merge((first,))[0].kv_bytes == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a", "method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 6},
        {"name": "b", "method": "suffix", "num_speculative_tokens": 7},
        {"name": "c", "method": "medusa", "model": "m", "num_speculative_tokens": 2},
    ],
)
def test_a_proposer_can_be_loaded_again_from_its_fields(fields: dict[str, Any]) -> None:
    spec = parse_spec(fields)
    assert parse_spec(fields_of(spec)) == spec


def engines_of(fleet: Fleet, name: str) -> dict[str, float]:
    """The values of a metric of vLLM's, by its label `engine`."""
    return {
        sample.labels["engine"]: sample.value
        for family in fleet.registry.collect()
        for sample in family.samples
        if sample.name == f"vllm:{name}"
    }


async def test_vllms_metrics_have_a_series_for_each_engine(start: StartFleet) -> None:
    fleet = await start()
    for i in range(4):
        request = make_request(f"r{i}", SpecMethod("ngram", 3), prompt=(i, 7), max_tokens=20)
        await fleet.run(request)
    for name in ("generation_tokens_total", "spec_decode_num_draft_tokens_total"):
        values = engines_of(fleet, name)
        assert set(values) == {"0", "1"}
        assert all(values.values()), name
    reported = sum(
        counts.drafted for step in fleet.reports.steps for counts in step.verified.values()
    )
    assert sum(engines_of(fleet, "spec_decode_num_draft_tokens_total").values()) == reported


async def test_policies_and_evidence_show_each_engine(start: StartFleet) -> None:
    fleet = await start()
    for i in range(4):
        request = make_request(f"r{i}", SpecMethod("auto", 3), prompt=(i, 7), max_tokens=20)
        await fleet.run(request)
    evidence = fleet.engine.evidence["engines"]
    assert set(evidence) == {"0", "1"}
    assert all(own["steps"] for own in evidence.values())
    (auto,) = [info for info in fleet.engine.policies if info.name == "auto"]
    assert set(auto.state["engines"]) == {"0", "1"}
    assert auto.parameters["min_gain"] == 0.01


async def test_the_compiled_grammars_are_those_of_all_engines(start: StartFleet) -> None:
    fleet = await start()
    step = StepReport(StepKind.DECODE, 0.1, {}, {}, {}, {})
    for index, number, shown in ((0, 3, 3), (1, 4, 7), (0, 1, 5)):
        grammars = CompiledGrammars(number, 1000 * number)
        fleet.engine.on_member_step(index, replace(step, grammars=grammars))
        assert fleet.reports.steps[-1].grammars == CompiledGrammars(shown, 1000 * shown)
    fleet.engine.on_member_restart(0, succeeded=True)
    fleet.engine.on_member_step(0, step)
    assert fleet.reports.steps[-1].grammars.number == 4


async def test_a_policy_is_held_while_the_guard_of_one_engine_holds_it(start: StartFleet) -> None:
    fleet = await start()
    step = StepReport(StepKind.DECODE, 0.1, {}, {}, {}, {})

    def held(index: int, *, suspended: bool) -> bool:
        policy = PolicyStep(suspended={"auto": suspended})
        fleet.engine.on_member_step(index, replace(step, policy=policy))
        reported = fleet.reports.steps[-1].policy
        assert reported is not None
        return reported.suspended["auto"]

    assert held(0, suspended=True)
    assert held(1, suspended=False), "the first one still is"
    fleet.engine.on_member_restart(0, succeeded=True)
    assert not held(1, suspended=False), "a new process has forgotten it"
    assert fleet.reports.restarts == [True]


async def test_the_prefix_cache_is_emptied_in_every_engine(start: StartFleet) -> None:
    fleet = await start(**SLOW)
    assert await fleet.engine.reset_prefix_cache()
    running = fleet.begin(make_request("r", SpecMethod("ngram", 3), max_tokens=ENDLESS))
    await eventually(lambda: any(rank.num_running for rank in fleet.ranks))
    assert not await fleet.engine.reset_prefix_cache()
    running.cancel()
    for rank in fleet.ranks:
        rank.die()
    with pytest.raises(EngineDead):
        await fleet.engine.reset_prefix_cache()
