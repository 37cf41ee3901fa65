"""What a policy's plan costs, in microseconds of CPU time per step.

No engine: a `Planner` with nine proposers plans steps whose rows, drafts and times are made up, and
learns from them, as in the scheduler. `plan` is `Planner.plan`, `observe` is `Planner.observe`.
"""

import cProfile
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine_adapter.policies.contract import (
    DraftOutcome,
    DraftTime,
    ProposerTraits,
    RequestClass,
    RowView,
    StepPlan,
    StepView,
)
from engine_adapter.policies.planner import Planner, StepOutcome
from engine_adapter.seam.types import SpecMethod

MAX_K = 8

PROPOSERS = (
    ProposerTraits("ngram", 5, lookup=True),
    ProposerTraits("suffix", 8, lookup=True),
    ProposerTraits("draft", 4, keeps_kv=True),
    ProposerTraits("draft-small", 4, keeps_kv=True),
    ProposerTraits("medusa", 4),
    ProposerTraits("mlp-speculator", 4),
    ProposerTraits("eagle", 4, keeps_kv=True),
    ProposerTraits("eagle3", 4, keeps_kv=True),
    ProposerTraits("eagle3-long", 8, keeps_kv=True),
)
"""The loaded proposers."""

ACCEPTED = (0.5, 0.6, 0.6, 0.5, 0.35, 0.55, 0.6, 0.7, 0.7)
"""The chance that the target accepts a token of each."""

STEP_S, TOKEN_S, CALL_S = 0.030, 0.0006, 0.002
"""A step of the target, each token beyond the fourth, and a pass of a proposer with a model."""

WARM_UP, STEPS = 150, 300
"""Steps before the measurement; measured steps."""

TABLE_HEAD = (
    "| policy | rows | plan, median us | plan, p99 | observe, median | observe, p99 |",
    "|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Microseconds of CPU time of each measured step."""

    policy: str
    rows: int
    plan_us: Sequence[float]
    observe_us: Sequence[float]


class _Steps:
    """Made-up traffic for one planner: every row decodes for ever."""

    def __init__(self, policy: str, rows: int, seed: int) -> None:
        self.planner = Planner(PROPOSERS, MAX_K)
        self._method = SpecMethod(policy, MAX_K)
        self._random = random.Random(seed)
        self._lengths = {f"request-{i}": 200 + i for i in range(rows)}
        self._plan = StepPlan()
        for request_id in self._lengths:
            self.planner.measurements.admit(request_id, RequestClass.GREEDY)

    def view(self) -> StepView:
        """The next step's view."""
        rows = [RowView(r, self._method, 100, n) for r, n in self._lengths.items()]
        return StepView(rows, len(rows))

    def outcome(self, plan: StepPlan) -> StepOutcome:
        """What the step does that verifies the plan before `plan`, and drafts `plan`."""
        seen = [
            self._outcome(r, m.proposer, m.num_speculative_tokens) for r, m in self._plan_drafts()
        ]
        emitted = len(self._lengths)
        for outcome in seen:
            self._lengths[outcome.request_id] += outcome.accepted
            emitted += outcome.accepted
        for request_id in self._lengths:
            self._lengths[request_id] += 1
        tokens = len(self._lengths) + sum(outcome.verified for outcome in seen)
        for name, requests in plan.shadows.items():
            seen.extend(self._outcome(r, name, 5) for r in requests)
        self._plan = plan
        seconds = STEP_S + TOKEN_S * max(0, tokens - 4)
        noise = self._random.lognormvariate(0, 0.03)
        context = float(sum(self._lengths.values()))
        rows = len(self._lengths)
        verified = tokens > rows
        work = list(self._work(plan))
        return StepOutcome(
            seen, work, rows, tokens, context, emitted, verified, False, seconds * noise
        )

    def _plan_drafts(self) -> Iterator[tuple[str, SpecMethod]]:
        yield from self._plan.drafts.items()

    def _outcome(self, request_id: str, name: str, k: int) -> DraftOutcome:
        proposer = next(i for i, traits in enumerate(PROPOSERS) if traits.name == name)
        length = capacity = PROPOSERS[proposer].num_speculative_tokens
        if PROPOSERS[proposer].lookup:
            length = self._random.randint(0, capacity)
        verified, accepted = min(length, k), 0
        while accepted < verified and self._random.random() < ACCEPTED[proposer]:
            accepted += 1
        return DraftOutcome(request_id, name, capacity, length, verified, accepted)

    def _work(self, plan: StepPlan) -> Iterator[tuple[str, DraftTime]]:
        for traits in PROPOSERS:
            ks = [
                m.num_speculative_tokens for m in plan.drafts.values() if m.proposer == traits.name
            ]
            ks += [5] * len(plan.shadows.get(traits.name, ()))
            if ks:
                seconds = 1e-5 * len(ks) if traits.lookup else CALL_S * max(ks)
                seconds *= self._random.lognormvariate(0, 0.03)
                yield traits.name, DraftTime(seconds, len(ks), max(ks), sum(ks), 0)


def measure_plans(
    policies: Sequence[str], rows: Sequence[int], steps: int = STEPS
) -> Iterator[PlanCost]:
    """Measures every policy at every number of rows."""
    for policy in policies:
        for count in rows:
            yield _measure(policy, count, steps)


def _measure(policy: str, rows: int, steps: int) -> PlanCost:
    world = _Steps(policy, rows, seed=rows)
    plan_us, observe_us = [], []
    for number in range(WARM_UP + steps):
        view = world.view()
        began = time.thread_time_ns()
        plan = world.planner.plan(view)
        planned = time.thread_time_ns()
        outcome = world.outcome(plan)
        observing = time.thread_time_ns()
        world.planner.observe(outcome)
        if number >= WARM_UP:
            plan_us.append((planned - began) / 1e3)
            observe_us.append((time.thread_time_ns() - observing) / 1e3)
    return PlanCost(policy, rows, plan_us, observe_us)


def table_row(cost: PlanCost) -> str:
    """The table's row of one measurement."""
    cells = [
        f"{value:.0f}"
        for values in (cost.plan_us, cost.observe_us)
        for value in (statistics.median(values), _p99(values))
    ]
    return f"| `{cost.policy}` | {cost.rows} | " + " | ".join(cells) + " |"


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def profile_plans(policy: str, rows: int, steps: int = STEPS) -> cProfile.Profile:
    """The profile of so many plans."""
    world = _Steps(policy, rows, seed=rows)
    profiler = cProfile.Profile(time.thread_time)
    for number in range(WARM_UP + steps):
        view = world.view()
        if number < WARM_UP:
            plan = world.planner.plan(view)
            world.planner.observe(world.outcome(plan))
            continue
        plan = profiler.runcall(world.planner.plan, view)
        outcome = world.outcome(plan)
        profiler.runcall(world.planner.observe, outcome)
    return profiler
