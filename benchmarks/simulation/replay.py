"""Policies over a trace, against every static choice and two oracles.

*regret* is the share of tokens per second that a policy loses against a choice; negative is a gain.
The *static* choices are plain decoding and each proposer with its whole k, for all requests. The
*label oracle* is given each request's label, and gives each label the static choice that is best
when its requests run alone; policies do not see labels. `oracle` has the *step oracle*.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.simulation.costs import QUIET, Noise
from benchmarks.simulation.engine import MethodOf, Simulation
from benchmarks.simulation.oracle import oracle_tokens_per_s
from benchmarks.simulation.result import Result
from benchmarks.simulation.trace import Trace
from benchmarks.simulation.workloads import WORKLOADS, Workload, only
from engine_adapter.policies.names import policy_name
from engine_adapter.seam.types import NONE, PLAIN, SpecMethod

NEAR = 0.95
"""The share of the best static choice's speed at which a policy has adapted."""

TABLE_HEAD = (
    "| workload | streams | method | tokens/s | regret: best static | label oracle | step oracle "
    "| steps | switches /1,000 | probes, % of time | suspensions | steps to 95 % after a change |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What to replay.

    Attributes:
        policies: names of policies.
        workloads: names of `WORKLOADS`.
        size: requests of each phase.
        parameters: policy -> parameters.
        primary: the primary proposer, if there is one.
        late: policies learn a step later, as under asynchronous scheduling.
    """

    trace: Trace
    policies: Sequence[str]
    workloads: Sequence[str]
    streams: Sequence[int]
    size: int
    seed: int = 0
    noise: Noise = QUIET
    parameters: Mapping[str, Mapping[str, Any]] | None = None
    primary: str | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """One method over one workload.

    Attributes:
        regret_static: against each static choice by name.
        regret_label, regret_step: against the oracles.
        adapted: for each phase after the first, the steps until it reached `NEAR` of the phase's
            best static choice; `None` if it never did.
        shares: proposer -> share of the steps in which it had most rows.
        mean_latency_s: of the requests.
    """

    workload: str
    streams: int
    method: str
    tokens_per_s: float
    regret_static: Mapping[str, float]
    regret_label: float
    regret_step: float
    steps: int
    switches_per_1000: float
    probe_share: float
    suspensions: int
    adapted: Sequence[int | None]
    shares: Mapping[str, float]
    mean_latency_s: float
    best_static: str
    seed: int


def replay(plan: ReplayPlan) -> Iterator[Replay]:
    """Replays each workload at each number of streams: the static choices, then the policies."""
    for name in plan.workloads:
        for streams in plan.streams if name != "ramp" else plan.streams[:1]:
            workload = WORKLOADS[name](plan.trace, plan.size, streams, plan.seed)
            yield from _Cell(plan, name, streams, workload).results()


class _Cell:
    """One workload at one number of streams."""

    def __init__(self, plan: ReplayPlan, name: str, streams: int, workload: Workload) -> None:
        self._plan = plan
        self._name = name
        self._streams = streams
        self._workload = workload

    def results(self) -> Iterator[Replay]:
        """A replay for each static choice, the label oracle and each policy."""
        plan = self._plan
        static = self._statics(self._workload)
        oracle = oracle_tokens_per_s(plan.trace, self._workload, plan.noise)
        routed = self._run(self._label_oracle())
        for name, result in static.items():
            yield self._replay(name, result, static, routed, oracle)
        yield self._replay("label oracle", routed, static, routed, oracle)
        for name in plan.policies:
            policy = policy_name(name)
            if policy is None:
                raise ValueError(f"no policy {name!r}")
            method = SpecMethod(policy, max(plan.trace.max_k, 1))
            result = self._run(_always(method))
            yield self._replay(name, result, static, routed, oracle)

    def _run(self, method_of: MethodOf, workload: Workload | None = None) -> Result:
        plan = self._plan
        requests = self._workload if workload is None else workload
        simulation = Simulation(
            plan.trace,
            requests,
            method_of,
            plan.parameters,
            plan.noise,
            plan.primary,
            late=plan.late,
        )
        return simulation.run()

    def _statics(self, workload: Workload) -> dict[str, Result]:
        methods = {NONE: PLAIN} | {
            traits.name: SpecMethod(traits.name, traits.num_speculative_tokens)
            for traits in self._plan.trace.proposers
        }
        return {name: self._run(_always(method), workload) for name, method in methods.items()}

    def _label_oracle(self) -> MethodOf:
        labels = {request.label for phase in self._workload for request in phase.requests}
        ks = {traits.name: traits.num_speculative_tokens for traits in self._plan.trace.proposers}
        best = {}
        for label in sorted(labels):
            results = self._statics(only(self._workload, label))
            name = max(results, key=lambda traits: results[traits].tokens_per_s)
            best[label] = SpecMethod(name, ks.get(name, 0))
        return lambda request: best[request.label]

    def _replay(
        self,
        method: str,
        result: Result,
        static: Mapping[str, Result],
        routed: Result,
        oracle: float,
    ) -> Replay:
        return Replay(
            workload=self._name,
            streams=self._streams,
            method=method,
            tokens_per_s=result.tokens_per_s,
            regret_static={
                name: _regret(result, choice.tokens_per_s) for name, choice in static.items()
            },
            regret_label=_regret(result, routed.tokens_per_s),
            regret_step=_regret(result, oracle),
            steps=len(result.steps),
            switches_per_1000=result.switches_per_1000,
            probe_share=result.probe_share,
            suspensions=result.suspensions,
            adapted=adaptation(result, static),
            shares=result.shares(),
            mean_latency_s=result.mean_latency_s,
            best_static=max(static, key=lambda name: static[name].tokens_per_s),
            seed=self._plan.seed,
        )


def adaptation(result: Result, static: Mapping[str, Result]) -> list[int | None]:
    """For each phase after the first, the steps until the result is `NEAR` its best static choice.

    A static choice's speed in a phase is its mean over the phase's steps.
    """
    reached = []
    for phase in range(1, len(result.starts)):
        best = max(choice.phase_rate(phase) for choice in static.values())
        reached.append(result.steps_to_reach(phase, NEAR * best))
    return reached


def _always(method: SpecMethod) -> MethodOf:
    return lambda _: method


def _regret(result: Result, tokens_per_s: float) -> float:
    return 1 - result.tokens_per_s / tokens_per_s


def table_row(result: Replay) -> str:
    """The table's row of one replay."""
    static = result.regret_static[result.best_static]
    adapted = ", ".join("never" if steps is None else str(steps) for steps in result.adapted)
    cells = (
        result.workload,
        str(result.streams),
        f"`{result.method}`",
        f"{result.tokens_per_s:.1f}",
        f"{100 * static:+.1f} % of `{result.best_static}`",
        f"{100 * result.regret_label:+.1f} %",
        f"{100 * result.regret_step:+.1f} %",
        str(result.steps),
        f"{result.switches_per_1000:.0f}",
        f"{100 * result.probe_share:.2f}",
        str(result.suspensions),
        adapted,
    )
    return "| " + " | ".join(cells) + " |"
