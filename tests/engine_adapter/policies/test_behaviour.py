"""Policies over time, in the simulator: they adapt, they do not oscillate, they are never slower.

The traces are made up (`tests.benchmarks.simulation.synthetic`), with the costs of the demo's wide
twin.
Every figure is a mean over `SEEDS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from benchmarks.simulation.costs import Noise, SlowPhase
from benchmarks.simulation.engine import Simulation
from benchmarks.simulation.replay import adaptation
from benchmarks.simulation.result import Result, rate
from benchmarks.simulation.trace import Trace
from benchmarks.simulation.workloads import WORKLOADS, Workload
from engine_adapter.policies.names import AUTO, PER_REQUEST
from engine_adapter.seam.types import NONE, PLAIN, SpecMethod
from tests.benchmarks.simulation.synthetic import PROPOSERS, QUALITIES, Quality, synthetic_trace

pytestmark = pytest.mark.prove  # minutes

SEEDS = (0, 1, 2)
ADAPTING = (AUTO, PER_REQUEST)
ADAPTED_STEPS = 64
"""The most steps until a policy is at 95 % of the new best."""

MAX_SWITCHES = 150
"""Changes of the main proposer per 1,000 steps."""

KS = {traits.name: traits.num_speculative_tokens for traits in PROPOSERS}


def made(workload: str, seed: int, streams: int = 4, size: int = 60) -> tuple[Trace, Workload]:
    """A trace and a workload over it."""
    trace = synthetic_trace(seed=seed)
    return trace, WORKLOADS[workload](trace, size, streams, seed)


def method(name: str) -> SpecMethod:
    """A policy, a proposer or plain decoding."""
    return PLAIN if name == NONE else SpecMethod(name, KS.get(name, 8))


def run(trace: Trace, workload: Workload, name: str, noise: Noise | None = None) -> Result:
    """One replay, with 5 % noise."""
    quiet = Noise(spread=0.05, seed=1)
    return Simulation(trace, workload, lambda _: method(name), None, noise or quiet).run()


def statics(trace: Trace, workload: Workload) -> Mapping[str, Result]:
    """Every static choice."""
    return {name: run(trace, workload, name) for name in (NONE, *KS)}


def mean(figure: Callable[[int], float]) -> float:
    """Over the seeds."""
    return sum(map(figure, SEEDS)) / len(SEEDS)


@pytest.mark.parametrize("policy", ADAPTING)
@pytest.mark.parametrize("streams", [1, 4])
def test_after_a_shift_of_the_traffic_it_is_near_the_new_best_within_64_steps(
    policy: str, streams: int
) -> None:
    reached: list[list[int | None]] = []
    for seed in SEEDS:
        trace, workload = made("shift", seed, streams)
        result = run(trace, workload, policy)
        reached.append(adaptation(result, statics(trace, workload)))
    for phase in zip(*reached, strict=True):
        known = sorted(10_000 if steps is None else steps for steps in phase)
        assert known[len(known) // 2] <= ADAPTED_STEPS, reached


@pytest.mark.parametrize("policy", ADAPTING)
@pytest.mark.parametrize("streams", [1, 4, 16])
@pytest.mark.parametrize("workload", ["quote", "free", "mixed", "shift"])
def test_it_is_near_the_best_static_choice(policy: str, streams: int, workload: str) -> None:
    def share(seed: int) -> float:
        trace, chosen = made(workload, seed, streams, size=40 + 10 * streams)
        best = max(result.tokens_per_s for result in statics(trace, chosen).values())
        return run(trace, chosen, policy).tokens_per_s / best

    assert mean(share) >= 0.95


@pytest.mark.parametrize("policy", ADAPTING)
@pytest.mark.parametrize("streams", [1, 4, 16])
def test_without_accepted_drafts_it_is_not_slower_than_plain_decoding(
    policy: str, streams: int
) -> None:
    def share(seed: int) -> float:
        trace, workload = made("random", seed, streams, size=40 * streams)
        return run(trace, workload, policy).tokens_per_s / run(trace, workload, NONE).tokens_per_s

    assert mean(share) >= 0.98


@pytest.mark.parametrize("policy", ADAPTING)
def test_a_ramp_of_the_load_makes_nothing_oscillate(policy: str) -> None:
    def per_1000(seed: int) -> float:
        trace, workload = made("ramp", seed, size=80)
        return run(trace, workload, policy).switches_per_1000

    assert mean(per_1000) <= MAX_SWITCHES


@pytest.mark.parametrize("policy", ADAPTING)
def test_over_a_ramp_of_the_load_it_is_near_the_best_choice_of_every_phase(policy: str) -> None:
    def share(seed: int) -> float:
        trace, workload = made("ramp", seed, size=80)
        known = statics(trace, workload)
        result = run(trace, workload, policy)
        # As long as the best static choice of each phase would take for the same tokens.
        best_s = sum(
            phase.output_tokens / max(one.phase_rate(number) for one in known.values())
            for number, phase in enumerate(workload)
        )
        return best_s / result.busy_s

    assert mean(share) >= 0.95


@pytest.mark.parametrize("policy", ADAPTING)
def test_probes_cost_at_most_their_share(policy: str) -> None:
    trace, workload = made("free", 0, streams=1, size=150)
    result = run(trace, workload, policy)
    settled = result.steps[300:]
    probes_s = sum(step.probe_s for step in settled)
    assert probes_s <= 0.011 * sum(step.target_s + step.draft_s for step in settled)


@pytest.mark.parametrize("policy", ADAPTING)
def test_a_proposer_whose_quality_recovers_is_used_again(policy: str) -> None:
    poor = {name: Quality(1.0, 0.05) for name in KS}
    good = poor | {"eagle3": Quality(1.0, 0.9)}
    results = []
    for seed in SEEDS:
        trace = synthetic_trace({"good": good, "poor": poor}, seed=seed)
        phases = [
            *phase_of(trace, "good", 30, "good"),
            *phase_of(trace, "poor", 60, "poor"),
            *phase_of(trace, "good", 60, "good again"),
        ]
        results.append(run(trace, phases, policy))
    assert mean(lambda seed: used(results[seed], 0, "eagle3")) > 0.6
    assert mean(lambda seed: used(results[seed], 1, "eagle3")) < 0.2
    assert mean(lambda seed: used(results[seed], 2, "eagle3")) > 0.7
    for result in results:
        assert "eagle3" in [step.method for step in result.span(2)][:512]


def phase_of(trace: Trace, label: str, size: int, name: str) -> Workload:
    """A phase of two streams with one label's requests."""
    found = [request for request in trace.requests if request.label == label]
    some = tuple(found[i % len(found)] for i in range(size))
    return [replace(WORKLOADS["mixed"](trace, 1, 2, 0)[0], name=name, requests=some)]


def used(result: Result, phase: int, proposer: str) -> float:
    """The share of a phase's steps in which a proposer drafts for most rows."""
    span = result.span(phase)
    return sum(step.method == proposer for step in span) / len(span)


@pytest.mark.parametrize("policy", ADAPTING)
@pytest.mark.parametrize("workload", ["quote", "random"])
def test_a_slow_phase_of_the_machine_changes_nothing(policy: str, workload: str) -> None:
    trace, chosen = made(workload, 0, streams=4, size=120)
    usual = run(trace, chosen, policy)
    half = len(usual.steps) // 2
    slow = Noise(0.05, slow=(SlowPhase(half, half + 60, 3.0),), seed=1)
    result = run(trace, chosen, policy, slow)
    assert result.suspensions <= usual.suspensions
    assert abs(len(result.steps) - len(usual.steps)) <= 0.05 * len(usual.steps)


@pytest.mark.parametrize("policy", ADAPTING)
def test_outliers_of_the_clock_change_little(policy: str) -> None:
    trace, workload = made("mixed", 0, streams=4, size=120)
    usual = run(trace, workload, policy)
    noisy = run(trace, workload, policy, Noise(0.1, outliers=0.02, outlier_factor=20, seed=1))
    assert noisy.suspensions <= usual.suspensions + 1
    assert len(noisy.steps) <= 1.1 * len(usual.steps)


@pytest.mark.parametrize("policy", ADAPTING)
@pytest.mark.parametrize("seconds", [0.0, -5.0, 1e-6, 93.0, float("inf"), float("nan")])
def test_a_clock_that_jumps_changes_little(policy: str, seconds: float) -> None:
    trace, workload = made("quote", 0, streams=4, size=120)
    usual = run(trace, workload, policy)
    simulation = Simulation(
        trace, workload, lambda _: method(policy), None, Noise(spread=0.05, seed=1)
    )
    while simulation.step():
        if len(simulation.result.steps) % 50 == 0:
            simulation.mismeasure(seconds)
    assert len(simulation.result.steps) <= 1.1 * len(usual.steps)
    assert simulation.result.suspensions == usual.suspensions


@pytest.mark.parametrize("policy", ADAPTING)
def test_the_proposer_in_use_may_be_unloaded_in_the_middle(policy: str) -> None:
    trace, workload = made("free", 0, streams=1, size=80)
    simulation = Simulation(trace, workload, lambda _: method(policy))
    while simulation.step():
        if len(simulation.result.steps) == 400:
            simulation.planner.measurements.remove_proposer("eagle3")
    after = simulation.result.steps[401:]
    assert all(step.method != "eagle3" for step in after)
    best = run(trace, workload, "draft").tokens_per_s
    assert rate(after[200:]) >= 0.9 * best


def test_the_qualities_differ_so_that_no_proposer_is_best_for_all() -> None:
    best = {label: max(q, key=lambda n: q[n].accepted) for label, q in QUALITIES.items()}
    assert len(set(best.values())) == 2
