"""Traces and replays: what is written is read, the oracles bound the policies, figures add up."""

import gzip
import json
import statistics
from pathlib import Path

import pytest

from benchmarks.simulation.costs import Noise
from benchmarks.simulation.engine import Simulation
from benchmarks.simulation.oracle import oracle_tokens_per_s
from benchmarks.simulation.record import compare
from benchmarks.simulation.replay import ReplayPlan, replay
from benchmarks.simulation.result import switches
from benchmarks.simulation.trace import Trace, TraceError, load_trace, save_trace
from benchmarks.simulation.workloads import WORKLOADS
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.benchmarks.simulation.synthetic import PROPOSERS, synthetic_trace

RECORDED = Path(__file__).parents[1] / "data" / "demo-trace.json.gz"
"""Of `record --target demo --requests 8 --max-tokens 64 --timed-steps 60`."""


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(requests=6, output_tokens=40)


def test_a_trace_is_read_as_it_was_written(trace: Trace, tmp_path: Path) -> None:
    save_trace(trace, tmp_path / "a.json.gz")
    save_trace(load_trace(tmp_path / "a.json.gz"), tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", *(gzip.compress(text, mtime=0) for text in (b"[1]", b"{}", b"\xff"))],
    # The bytes would be the tests' names.
    ids=["empty", "no gzip", "a list", "no fields", "no text"],
)
def test_a_file_that_is_not_a_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.json.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"bad\.json\.gz is not a trace"):
        load_trace(path)


def test_impossible_counts_are_refused(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "bad.json.gz"
    save_trace(trace, path)
    whole = json.loads(gzip.decompress(path.read_bytes()))
    whole["requests"][0]["accepted"] = whole["requests"][0]["drafted"]
    whole["requests"][0]["drafted"] = ["0" * 40] * len(PROPOSERS)
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    with pytest.raises(TraceError, match="impossible"):
        load_trace(path)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("proposer", ["none", "ngram", "eagle3"])
def test_every_token_of_every_request_is_emitted_once(
    trace: Trace, workload: str, proposer: str
) -> None:
    phases = WORKLOADS[workload](trace, 8, 3, 0)
    method = PLAIN if proposer == "none" else SpecMethod(proposer, 4)
    result = Simulation(trace, phases, lambda _: method).run()
    assert result.tokens == sum(phase.output_tokens for phase in phases)
    assert len(result.latencies_s) == sum(len(phase.requests) for phase in phases)
    assert len(result.starts) == len(phases)


def test_plain_decoding_takes_one_step_for_each_token_and_the_cost_of_the_target(
    trace: Trace,
) -> None:
    phases = WORKLOADS["free"](trace, 1, 1, 0)
    result = Simulation(trace, phases, lambda _: PLAIN).run()
    assert len(result.steps) == phases[0].output_tokens
    decode_s = trace.costs.target.seconds(1, phases[0].requests[0].prompt_tokens + 1)
    assert result.steps[1].target_s == pytest.approx(decode_s)


def test_replays_are_deterministic_and_the_step_oracle_bounds_all(trace: Trace) -> None:
    plan = ReplayPlan(trace, ["auto"], ["mixed"], [2], 20)
    results = list(replay(plan))
    assert results == list(replay(plan))
    assert all(one.regret_step >= 0 for one in results)
    assert {one.method for one in results} >= {"none", "eagle3", "label oracle", "auto"}
    best = min(one.regret_static[one.best_static] for one in results[: len(PROPOSERS) + 1])
    assert best == 0


def test_without_accepted_drafts_the_oracle_is_plain_decoding(trace: Trace) -> None:
    phases = WORKLOADS["random"](trace, 6, 2, 0)
    plain = Simulation(trace, phases, lambda _: PLAIN).run().tokens_per_s
    assert oracle_tokens_per_s(trace, phases) == pytest.approx(plain)


def test_the_recorded_trace_is_replayed() -> None:
    recorded = load_trace(RECORDED)
    assert {request.label for request in recorded.requests} == {"quote", "free"}
    plan = ReplayPlan(recorded, ["auto"], ["quote"], [1], 4)
    assert all(one.tokens_per_s > 0 for one in replay(plan))


LATE = [
    pytest.param(name, streams, marks=() if (name, streams) == ("quote", 4) else pytest.mark.prove)
    for name in ("quote", "free", "mixed", "shift")
    for streams in (1, 4, 16)
]


@pytest.mark.parametrize(("name", "streams"), LATE)
def test_a_policy_that_learns_a_step_later_chooses_as_well(name: str, streams: int) -> None:
    """Medians of 7 replays were 0.975 to 0.997 of those of a policy that learns at once."""
    trace = load_trace(RECORDED)
    method = SpecMethod("auto", trace.max_k)
    ratios = []
    for seed in range(7):
        at_once, late = (
            Simulation(
                trace,
                WORKLOADS[name](trace, 12 * streams, streams, seed),
                lambda _: method,
                noise=Noise(0.05),
                late=late,
            )
            .run()
            .tokens_per_s
            for late in (False, True)
        )
        ratios.append(late / at_once)
    print(f"{name} {streams}: {statistics.median(ratios):.3f}")
    assert statistics.median(ratios) >= 0.97, sorted(ratios)


def test_leaving_the_main_proposer_for_one_step_is_not_a_switch() -> None:
    assert switches(list("aaabaaa")) == 0
    assert switches(list("aabbaa")) == 2


def test_drafts_are_compared_with_the_answer() -> None:
    drafted = {("r", 3): [[7, 8, 9], []], ("r", 4): [[8, 1], [8]]}
    counts, accepted = compare(drafted, "r", [1, 2], [6, 7, 8, 5], PROPOSERS[:2])
    assert counts.tolist() == [[0, 0], [3, 0], [2, 1], [0, 0]]
    assert accepted.tolist() == [[0, 0], [2, 0], [1, 1], [0, 0]]
