"""`goodput`, also `auto`: the proposers and lengths with the most tokens per second, none included.

`choice` has the formula, `explore` how evidence stays fresh, `guard` what is bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine_adapter.policies.choice import NOTHING, Choice, Chooser, Load, Prices
from engine_adapter.policies.contract import RowView, StepPlan, StepView
from engine_adapter.policies.evidence import Evidence
from engine_adapter.policies.explore import Explorer, Probe
from engine_adapter.policies.guard import Guard, GuardParameters
from engine_adapter.policies.parameters import number
from engine_adapter.types import SpecMethod


@dataclass(frozen=True, slots=True)
class GoodputParameters:
    """The parameters of `goodput` and of `per_request`.

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
    hysteresis: float = number(0.1, 0.0, 1.0)
    probe_share: float = number(0.01, 0.0, 0.2)
    guard_limit: float = number(0.02, 0.001, 1.0)
    guard_window: int = number(256, 16, 100_000)
    refresh_steps: int = number(128, 8, 100_000)


class GoodputPolicy:
    """Plans with a `Chooser`; see the module."""

    def __init__(self, parameters: GoodputParameters, evidence: Evidence) -> None:
        self.parameters = parameters
        self._evidence = evidence
        self._explorer = Explorer(evidence, parameters.probe_share)
        self._guard = Guard(GuardParameters(parameters.guard_limit, parameters.guard_window))
        self._prices = Prices(0.0, 0.3)
        self._since_plain = 0
        self._gain = 1.0
        self._methods: dict[tuple[int, int], SpecMethod] = {}

    @property
    def suspended(self) -> bool:
        """Whether the guard holds it at plain decoding."""
        return self._guard.suspended

    def plan(self, view: StepView) -> StepPlan:
        """The plan with the highest expected rate, and what keeps the evidence fresh."""
        rows = [row for row in view.rows if row.draft_budget > 0]
        proven = [i for i in self._evidence.candidates() if self._evidence.is_proven(i)]
        choice = None
        if rows and proven and not self._guard.suspended and not self._refresh_due():
            choice = self._choose(rows, proven, view)
        drafts: dict[str, SpecMethod] = {}
        fallbacks: dict[str, SpecMethod] = {}
        first: dict[str, int] = {}
        if choice is not None:
            self._write(rows, proven, choice, drafts, fallbacks, first)
        in_use = frozenset(first.values())
        probe = self._explorer.probe(rows, in_use)
        if probe is not None:
            self._write_probe(rows, probe, drafts, fallbacks, first)
        return StepPlan(drafts, fallbacks, self._explorer.shadows(rows, first))

    def observe(self, emitted: int, plain: float, seconds: float, verified: bool) -> None:
        """Takes a step; see `Guard.observe`. `verified`: it had drafts."""
        self._guard.observe(emitted, plain)
        self._explorer.earn(seconds)
        self._since_plain = self._since_plain + 1 if verified else 0

    def state(self) -> dict[str, Any]:
        """The expected gain over plain decoding, the guard, and the probes so far."""
        return {
            "expected_gain": round(self._gain, 3),
            "price": round(self._prices.token, 3),
            "drafting": sorted(
                self._evidence.traits(i).name
                for i in self._prices.shown
                if i in self._evidence.loaded.values()
            ),
            "probes": self._explorer.probes,
            "guard": self._guard.state(),
        }

    def _refresh_due(self) -> bool:
        steps = self.parameters.refresh_steps * (8 if self._gain > 1.5 else 1)
        return self._since_plain >= steps

    def _choose(
        self, rows: Sequence[RowView], proven: Sequence[int], view: StepView
    ) -> Choice | None:
        """The best choice; `None` if it promises too little over plain decoding."""
        load = Load(
            max(view.num_running, len(rows)),
            max(view.num_running, len(rows)) + view.fixed_drafts,
            float(sum(row.num_tokens for row in rows)),
        )
        chooser = self._chooser(rows, proven, load)
        plain, best = chooser.plain(), self._pick(chooser)
        self._gain = best.rate / plain.rate
        worth = self._gain >= 1 + self.parameters.min_gain and best is not plain
        kept = best if worth else plain
        shown = frozenset(
            proven[j] for one in (kept.first, kept.second) for j in set(one.tolist()) - {NOTHING}
        )
        token = 0.5 * (self._prices.token + best.price) if worth else self._prices.token
        self._prices = Prices(kept.rate, token, shown, 1 + self.parameters.hysteresis)
        return kept if worth else None

    def _chooser(self, rows: Sequence[RowView], proven: Sequence[int], load: Load) -> Chooser:
        return Chooser(self._evidence, self._evidence.outlook(rows, proven), load, self._prices)

    def _pick(self, chooser: Chooser) -> Choice:
        return chooser.best()

    def _write(
        self,
        rows: Sequence[RowView],
        proven: Sequence[int],
        choice: Choice,
        drafts: dict[str, SpecMethod],
        fallbacks: dict[str, SpecMethod],
        first: dict[str, int],
    ) -> None:
        """Writes the choice as a plan."""
        columns = (choice.first, choice.first_k, choice.second, choice.second_k)
        for row, j, k, second, second_k in zip(
            rows, *(column.tolist() for column in columns), strict=True
        ):
            if j != NOTHING and k:
                first[row.request_id] = proven[j]
                drafts[row.request_id] = self._method(proven[j], k)
                if second != NOTHING and second_k:
                    fallbacks[row.request_id] = self._method(proven[second], second_k)

    def _write_probe(
        self,
        rows: Sequence[RowView],
        probe: Probe,
        drafts: dict[str, SpecMethod],
        fallbacks: dict[str, SpecMethod],
        first: dict[str, int],
    ) -> None:
        """Gives the probe's row to the probed proposer."""
        row = next(row for row in rows if row.request_id == probe.request_id)
        k = min(
            self._evidence.traits(probe.proposer).num_speculative_tokens,
            row.draft_budget,
            row.spec_method.num_speculative_tokens,
        )
        drafts[probe.request_id] = self._method(probe.proposer, k)
        fallbacks.pop(probe.request_id, None)
        first[probe.request_id] = probe.proposer

    def _method(self, proposer: int, k: int) -> SpecMethod:
        key = proposer, k
        method = self._methods.get(key)
        name = self._evidence.traits(proposer).name
        if method is None or method.proposer != name:
            method = self._methods[key] = SpecMethod(name, k)
        return method
