"""`auto`: the proposers and lengths with the most tokens per second, none included.

`choice` has the formula, `explore` how measurements stay fresh, `guard` what is bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine_adapter.policies.choice import Chooser
from engine_adapter.policies.choice_types import NOTHING, Choice, Load, Prices
from engine_adapter.policies.contract import NO_PLAN, RowView, StepPlan, StepResult, StepView
from engine_adapter.policies.explore import Explorer, Probe
from engine_adapter.policies.guard import Guard, GuardParameters
from engine_adapter.policies.measurements import Measurements
from engine_adapter.policies.parameters import number
from engine_adapter.seam.types import SpecMethod

CHOICE_INTERVAL = 4
"""Steps between two choices for the same rows."""

RANK_INTERVAL, MODELS = 32, 2
"""Steps between two rankings of all proposers with a model, and how many of the best are then
considered in every choice."""


@dataclass(frozen=True, slots=True)
class GoodputParameters:
    """The parameters of `auto` and of `per_request`.

    Attributes:
        min_gain: a plan must promise this share more tokens per second than plain decoding.
        hysteresis: a proposer that drafted in the step before gets this share more of its gain.
        probe_share: of the time, for probes; as much again for shadows.
        guard_limit: the share of plain decoding's tokens that the policy may lose.
        guard_window: the steps that the guard looks back.
        refresh_steps: after this many steps with drafts one step decodes plainly, where
            speculation gains little, so that the time of a plain step stays known; eight times
            as many where it gains more than half.
    """

    min_gain: float = number(0.01, 0.0, 1.0)
    hysteresis: float = number(0.2, 0.0, 1.0)
    probe_share: float = number(0.005, 0.0, 0.2)
    guard_limit: float = number(0.02, 0.001, 1.0)
    guard_window: int = number(256, 16, 100_000)
    refresh_steps: int = number(128, 8, 100_000)


class GoodputPolicy:
    """Plans with a `Chooser`; see the module."""

    def __init__(self, parameters: GoodputParameters, measurements: Measurements) -> None:
        self.parameters = parameters
        self._measurements = measurements
        self._explorer = Explorer(measurements, parameters.probe_share)
        self._guard = Guard(GuardParameters(parameters.guard_limit, parameters.guard_window))
        self._prices = Prices(0.0, 0.1)
        self._since_plain = 0
        self._gain = 1.0
        self._drafting = False
        self._steps = self._choose_at = self._rank_at = 0
        self._models: list[int] = []
        # The rows of the last choice, and what was chosen for them.
        self._known_rows: set[str] = set()
        self._plan, self._longest = NO_PLAN, 0
        self._methods: dict[tuple[str, int], SpecMethod] = {}

    @property
    def suspended(self) -> bool:
        """Whether the guard holds it at plain decoding."""
        return self._guard.suspended

    def plan(self, view: StepView) -> StepPlan:
        """The plan with the highest expected rate, and what keeps the measurements fresh."""
        rows = [row for row in view.rows if row.draft_budget > 0]
        self._steps += 1
        if self._guard.suspended or self._refresh_due():
            self._plan = NO_PLAN
            self._choose_at = self._steps
        elif self._steps >= self._choose_at or self._rows_changed(rows):
            self._choose(rows, view)
        plan = self._plan
        if len(rows) < len(self._known_rows) or any(row.limit < self._longest for row in rows):
            plan = self._within_limits(plan, rows)
        self._drafting = bool(plan.drafts)
        probe = self._explorer.probe(rows, self._prices.in_use if plan else frozenset())
        if probe is not None:
            plan = self._with_probe(plan, probe)
        return replace(plan, shadows=self._explorer.shadows(rows, plan.drafts))

    def _with_probe(self, plan: StepPlan, probe: Probe) -> StepPlan:
        """The plan with a probe in place of what was chosen for its rows."""
        probed = {r: self._method(probe.proposer, k) for r, k in probe.lengths.items()}
        fallbacks, verify_caps = dict(plan.fallbacks), dict(plan.verify_caps)
        lookup = self._measurements.traits(probe.proposer).lookup
        for request_id in probed:
            verify_caps.pop(request_id, None)
            fallbacks.pop(request_id, None)
            if lookup:
                verify_caps[request_id] = self._measurements.verify_all
        return StepPlan({**plan.drafts, **probed}, fallbacks, verify_caps=verify_caps)

    def observe(self, step: StepResult) -> None:
        """Takes a step; see `PlanningPolicy.observe`."""
        # Where only probes draft, the choice loses nothing.
        if self._drafting or self._guard.suspended:
            self._guard.observe(step)
        self._explorer.earn(step.seconds)
        self._since_plain = self._since_plain + 1 if step.verified else 0

    def state(self) -> dict[str, Any]:
        """The expected gain over plain decoding, the guard, and the probes so far."""
        return {
            "expected_gain": round(self._gain, 3),
            "price": round(self._prices.token, 3),
            "drafting": sorted(
                self._measurements.traits(i).name
                for i in self._prices.in_use
                if i in self._measurements.loaded.values()
            ),
            "probes": self._explorer.probes,
            "guard": self._guard.state(),
        }

    def _refresh_due(self) -> bool:
        steps = self.parameters.refresh_steps * (8 if self._gain > 1.5 else 1)
        return self._since_plain >= steps

    def _rows_changed(self, rows: Sequence[RowView]) -> bool:
        """Whether a row is new."""
        return any(row.request_id not in self._known_rows for row in rows)

    def _choose(self, rows: Sequence[RowView], view: StepView) -> None:
        """Chooses for the rows until the next choice."""
        self._choose_at = self._steps + CHOICE_INTERVAL
        self._known_rows = {row.request_id for row in rows}
        self._plan = NO_PLAN
        proposers = self._shortlist()
        if not rows or not proposers:
            # What drafted before may be unloaded; it is probed when it comes back.
            self._prices, self._gain = replace(self._prices, in_use=frozenset()), 1.0
            return
        count = max(view.num_running, len(rows))
        context = float(sum(row.num_tokens for row in rows))
        load = Load(count, count + view.fixed_drafts, context)
        forecast = self._measurements.forecast(rows, proposers)
        chooser = Chooser(self._measurements, forecast, load, self._prices)
        if self._steps >= self._rank_at:
            self._rank_at = self._steps + RANK_INTERVAL
            self._models = chooser.models_by_gain()[:MODELS]
        plain, best = chooser.plain(), self._pick(chooser)
        self._gain = best.rate / plain.rate
        if self._gain < 1 + self.parameters.min_gain:
            self._prices = Prices(plain.rate, self._smoothed(plain.price))
            return
        self._assign(rows, proposers, best)
        indices = set(best.proposer.tolist()) | set(best.fallback.tolist())
        in_use = frozenset(proposers[j] for j in indices - {NOTHING})
        bonus = 1 + self.parameters.hysteresis
        self._prices = Prices(best.rate, self._smoothed(best.price), in_use, bonus)

    def _smoothed(self, price: float) -> float:
        """The mean of the price before and this one, so that the choice does not swing."""
        return 0.5 * (self._prices.token + price)

    def _shortlist(self) -> list[int]:
        """The proposers to choose from: all lookups, and the best of the others."""
        measurements = self._measurements
        proven = [i for i in measurements.candidates() if measurements.is_proven(i)]
        if self._steps >= self._rank_at:
            return proven
        return [i for i in proven if measurements.traits(i).lookup or i in self._models]

    def _pick(self, chooser: Chooser) -> Choice:
        return chooser.best()

    def _assign(self, rows: Sequence[RowView], proposers: Sequence[int], choice: Choice) -> None:
        """Notes each row's proposers and lengths."""
        drafts: dict[str, SpecMethod] = {}
        fallbacks: dict[str, SpecMethod] = {}
        verify_caps: dict[str, Sequence[int]] = {}
        columns = (
            choice.proposer,
            choice.k,
            choice.verify_caps,
            choice.fallback,
            choice.fallback_k,
        )
        for row, j, k, caps, fallback, fallback_k in zip(
            rows, *(column.tolist() for column in columns), strict=True
        ):
            if j == NOTHING:
                continue
            drafts[row.request_id] = self._method(proposers[j], k)
            if self._measurements.traits(proposers[j]).lookup:
                verify_caps[row.request_id] = caps
            if fallback != NOTHING:
                fallbacks[row.request_id] = self._method(proposers[fallback], fallback_k)
        self._plan = StepPlan(drafts, fallbacks, verify_caps=verify_caps)
        self._longest = int(max(choice.k.max(), choice.fallback_k.max()))

    def _within_limits(self, plan: StepPlan, rows: Sequence[RowView]) -> StepPlan:
        """What was chosen for these rows, with at most the tokens that each may have now."""
        drafts: dict[str, SpecMethod] = {}
        fallbacks: dict[str, SpecMethod] = {}
        for row in rows:
            for methods, limited in ((plan.drafts, drafts), (plan.fallbacks, fallbacks)):
                if method := methods.get(row.request_id):
                    k = min(method.num_speculative_tokens, row.limit)
                    limited[row.request_id] = self._named(method.proposer, k)
        verify_caps = {r: caps for r, caps in plan.verify_caps.items() if r in drafts}
        return StepPlan(drafts, fallbacks, verify_caps=verify_caps)

    def _method(self, proposer: int, k: int) -> SpecMethod:
        return self._named(self._measurements.traits(proposer).name, k)

    def _named(self, name: str, k: int) -> SpecMethod:
        method = self._methods.get((name, k))
        if method is None:
            method = self._methods[name, k] = SpecMethod(name, k)
        return method
