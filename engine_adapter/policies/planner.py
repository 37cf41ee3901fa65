"""The planner: the one object that the scheduler asks for every step's plan.

Rows under a proposer follow it; rows under a policy follow that policy's plan. All feed one
`Measurements`. Without a policy one step in `UNPLANNED_EVERY` does, so that a policy knows the
traffic when it is switched on.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_adapter.policies.catalog import POLICIES, PlanningPolicy, read_policy
from engine_adapter.policies.contract import (
    DraftOutcome,
    DraftTime,
    ProposerTraits,
    RowView,
    StepPlan,
    StepResult,
    StepView,
)
from engine_adapter.policies.fixed import FixedPolicy
from engine_adapter.policies.measurements import Measurements
from engine_adapter.policies.timing import MAX_SECONDS, OUTLIER
from engine_adapter.seam.counts import PolicyStep
from engine_adapter.seam.types import NONE

log = logging.getLogger(__name__)

UNPLANNED_EVERY = 23
"""Without a policy one step of this number is learned from: it takes time, and no row gains.

A prime, so that no period of the traffic, such as one of a power of two, hides its drafts.
"""


@dataclass(slots=True)
class PlanNotes:
    """What `Planner.observe` must know of the plan of a step.

    Attributes:
        lag: the tokens that each proposer with KV has to read for the plan, by index, [J].
        decisions: policy that planned rows -> proposer -> for how many rows it was chosen.
    """

    lag: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    decisions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def add_lag(self, lag: npt.NDArray[np.float64]) -> None:
        """Adds what another proposer has to read; a proposer may have been loaded since."""
        total = np.zeros(max(len(self.lag), len(lag)))
        total[: len(self.lag)] += self.lag
        total[: len(lag)] += lag
        self.lag = total


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """One step, after it ran.

    Attributes:
        drafts: every draft whose outcome the step decided; shadows are among them.
        work: each call of a proposer in the step, by name.
        rows: rows of the step.
        tokens: tokens that the target read, drafts included.
        context: the rows' tokens in total.
        emitted: tokens that the rows emitted.
        verified: whether there were drafts to verify.
        prefill: whether a row read its prompt; then the step's time says nothing about others.
        seconds: the step's time without that of the proposers.
        notes: of the plan whose drafts `work` made. `None`: those of the newest plan.
    """

    drafts: Sequence[DraftOutcome]
    work: Sequence[tuple[str, DraftTime]]
    rows: int
    tokens: int
    context: float
    emitted: int
    verified: bool
    prefill: bool
    seconds: float
    notes: PlanNotes | None = None


@dataclass(slots=True)
class _Active:
    """A policy in use."""

    policy: PlanningPolicy
    parameters: Any


class Planner:
    """Plans steps and learns from them.

    Args:
        proposers: the loaded proposers.
        max_k: the draft capacity.
        parameters: policy -> its parameters where they are not the defaults, as JSON objects.
        primary: the primary proposer, if there is one.

    Attributes:
        measurements: what all policies have measured.
        notes: of the newest plan. A caller that plans a step before it has observed the one before
            keeps them for the step's `StepOutcome`.

    Raises:
        PolicyError: a parameter cannot work.
    """

    def __init__(
        self,
        proposers: Sequence[ProposerTraits],
        max_k: int,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
        primary: str | None = None,
    ) -> None:
        self.measurements = Measurements(proposers, max_k)
        self.notes = PlanNotes()
        self._fixed = FixedPolicy()
        self._primary = primary
        self._error: str | None = None
        self._unplanned = 0
        self._active: dict[str, _Active] = {}
        for name in POLICIES:
            self.set_policy(name, (parameters or {}).get(name, {}))

    def set_policy(self, name: str, values: Mapping[str, Any]) -> None:
        """Replaces a policy by one with these parameters. Raises `PolicyError`."""
        ks = {
            proposer: self.measurements.traits(i).num_speculative_tokens
            for proposer, i in self.measurements.loaded.items()
        }
        parameters = read_policy(name, values, ks, self._primary)
        policy = POLICIES[name].create(parameters, self.measurements)
        self._active[name] = _Active(policy, parameters)

    # -- plan ----------------------------------------------------------------------------------

    def plan(self, view: StepView) -> StepPlan:
        """The plan of the step, of all rows together."""
        by_policy: dict[str, list[RowView]] = {}
        fixed: list[RowView] = []
        for row in view.rows:
            if row.spec_method.proposer in self._active:
                by_policy.setdefault(row.spec_method.proposer, []).append(row)
            else:
                fixed.append(row)
        plan = self._fixed.plan(StepView(fixed))
        self.notes = PlanNotes()
        try:
            if by_policy:
                plan = self._with_policies(view, plan, by_policy)
            self.measurements.note_lengths(view.rows)
            self.notes.lag = self.measurements.mark_read(plan.drafts.items())
        except Exception as error:
            self._contain(error)
        return plan

    def _contain(self, error: Exception) -> None:
        """A fault in a policy costs drafts, never a request: all policies start again; logged once.

        The scheduler calls the planner, so a fault that left it would end the engine's process.
        """
        described = f"{type(error).__name__}: {error}"[:300]
        if described != self._error:
            log.error("a policy failed: its rows decode plainly", exc_info=error)
        self._error = described
        for name, active in self._active.items():
            policy = POLICIES[name].create(active.parameters, self.measurements)
            self._active[name] = _Active(policy, active.parameters)

    def _with_policies(
        self, view: StepView, fixed: StepPlan, by_policy: Mapping[str, Sequence[RowView]]
    ) -> StepPlan:
        drafts, verify_caps, fallbacks = (
            dict(fixed.drafts),
            dict(fixed.verify_caps),
            dict(fixed.fallbacks),
        )
        shadows: dict[str, list[str]] = {}
        decisions: dict[str, Mapping[str, int]] = {}
        for name, rows in by_policy.items():
            active = self._active[name]
            num_drafts = sum(method.num_speculative_tokens for method in drafts.values())
            policy_plan = self._usable(
                active.policy.plan(replace(view, rows=rows, fixed_drafts=num_drafts))
            )
            counts = Counter(method.proposer for method in policy_plan.drafts.values())
            decisions[name] = {**counts, NONE: len(rows) - counts.total()}
            drafts |= policy_plan.drafts
            verify_caps |= policy_plan.verify_caps
            fallbacks |= policy_plan.fallbacks
            for proposer, requests in policy_plan.shadows.items():
                shadows.setdefault(proposer, []).extend(requests)
        self.notes.decisions = decisions
        return StepPlan(drafts, fallbacks, shadows, verify_caps)

    def _usable(self, plan: StepPlan) -> StepPlan:
        """The plan without proposers that are unloaded or quarantined, and within each one's k.

        A policy's parameters may name a proposer that was unloaded since, or loaded again.
        """
        limits = {
            name: self.measurements.traits(i).num_speculative_tokens
            for name, i in self.measurements.loaded.items()
            if name not in self.measurements.unavailable
        }
        methods = {*plan.drafts.values(), *plan.fallbacks.values()}
        if all(m.num_speculative_tokens <= limits.get(m.proposer, -1) for m in methods):
            return plan
        usable = {
            m: replace(m, num_speculative_tokens=min(m.num_speculative_tokens, limits[m.proposer]))
            for m in methods
            if m.proposer in limits
        }
        fallbacks = {r: usable[m] for r, m in plan.fallbacks.items() if m in usable}
        verify_caps = {r: caps for r, caps in plan.verify_caps.items() if plan.drafts[r] in usable}
        drafts = {
            r: usable[m] if m in usable else fallbacks.pop(r)
            for r, m in plan.drafts.items()
            if m in usable or r in fallbacks
        }
        return StepPlan(drafts, fallbacks, plan.shadows, verify_caps)

    # -- observe -------------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome) -> PolicyStep | None:
        """Learns from a step; what the policies did in it, if any planned rows."""
        try:
            return self._learn(outcome)
        except Exception as error:
            self._contain(error)
            return None

    def _learn(self, outcome: StepOutcome) -> PolicyStep | None:
        measurements, notes = self.measurements, outcome.notes or self.notes
        planning = {name: self._active[name].policy for name in notes.decisions}
        if not planning and not self._is_sample():
            return None
        if outcome.drafts:
            measurements.observe_drafts(outcome.drafts)
        measurements.observe_work(outcome.work, notes.lag)
        predicted = None
        # A clock that jumped gives no time that a policy could learn from.
        if not outcome.prefill and outcome.rows and 0 < outcome.seconds < MAX_SECONDS:
            has_prediction = measurements.steps > 0
            predicted = measurements.observe_step(
                outcome.rows, outcome.tokens, outcome.context, outcome.seconds
            )
            self._observe_policies(
                outcome, planning.values(), predicted if has_prediction else outcome.seconds
            )
            predicted = predicted if has_prediction else None
        if not planning:
            return None
        return PolicyStep(
            notes.decisions,
            predicted,
            None if predicted is None else outcome.seconds,
            {name: policy.suspended for name, policy in planning.items()},
        )

    def _is_sample(self) -> bool:
        """Whether a step without a policy is one of those that are learned from."""
        sample = self._unplanned % UNPLANNED_EVERY == 0
        self._unplanned += 1
        return sample

    def _observe_policies(
        self, outcome: StepOutcome, planning: Iterable[PlanningPolicy], predicted_s: float
    ) -> None:
        plain_s = self.measurements.step_time.plain_seconds(outcome.rows, outcome.context)
        drafting_s = sum(call.seconds for _, call in outcome.work)
        seconds = outcome.seconds + drafting_s
        capped_s = min(outcome.seconds, OUTLIER * predicted_s) + drafting_s
        result = StepResult(
            outcome.emitted, outcome.rows, seconds, capped_s / plain_s, outcome.verified
        )
        for policy in planning:
            policy.observe(result)

    # -- for people, and for the next process --------------------------------------------------

    def states(self) -> dict[str, dict[str, Any]]:
        """Each policy's state: plain JSON."""
        return {name: active.policy.state() for name, active in self._active.items()}

    def snapshot(self) -> dict[str, Any]:
        """The measurements and the policies' states, as plain JSON; `restore` takes it."""
        return {**self.measurements.snapshot(), "policies": self.states(), "error": self._error}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Takes the measurements of an engine process before this one."""
        self.measurements.restore(snapshot)
