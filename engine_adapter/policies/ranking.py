"""`quality_first` and `latency_first`: one proposer for all rows, the best by one measure.

Source: vLLM pull request 7947. `quality_first` takes the proposer with the highest measured
acceptance rate, over its whole k; `latency_first` the one with the least measured time per drafted
token, among those whose first token is accepted with at least `min_acceptance`. Both draft
their whole k. A proposer must be better by `hysteresis` to replace the one in use.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from engine_adapter.policies.contract import RequestClass, StepPlan, StepResult, StepView
from engine_adapter.policies.explore import Explorer
from engine_adapter.policies.measurements import Measurements
from engine_adapter.policies.parameters import number
from engine_adapter.seam.types import NONE, SpecMethod


@dataclass(frozen=True, slots=True)
class RankingParameters:
    """The parameters of both.

    Attributes:
        hysteresis: the share by which another proposer must be better.
        min_acceptance: of the first drafted token; a proposer below it is not used.
        probe_share: of the time, for probes; as much again for shadows.
    """

    hysteresis: float = number(0.05, 0.0, 1.0)
    min_acceptance: float = number(0.3, 0.0, 1.0)
    probe_share: float = number(0.005, 0.0, 0.2)


class RankingPolicy(ABC):
    """Takes the proposer with the highest score; a subclass defines the score."""

    def __init__(self, parameters: RankingParameters, measurements: Measurements) -> None:
        self.parameters = parameters
        self._measurements = measurements
        self._explorer = Explorer(measurements, parameters.probe_share)
        self._current: int | None = None

    @property
    def suspended(self) -> bool:
        """Never: it has no guard."""
        return False

    @abstractmethod
    def score(self, proposer: int, request_class: RequestClass) -> float:
        """The measure; higher is better."""

    def plan(self, view: StepView) -> StepPlan:
        """The best proposer for every row."""
        measurements = self._measurements
        rows = [row for row in view.rows if row.draft_budget > 0]
        if not rows:
            return StepPlan()
        # One class decides for all rows: that of most of them.
        kinds = [row.request_class for row in rows]
        self._current = self._best(max(set(kinds), key=kinds.count))
        in_use = frozenset() if self._current is None else frozenset({self._current})
        probe = self._explorer.probe(rows, in_use)
        drafts = {}
        if self._current is not None:
            traits = measurements.traits(self._current)
            for row in rows:
                k = min(traits.num_speculative_tokens, row.limit)
                drafts[row.request_id] = SpecMethod(traits.name, k)
        if probe is not None:
            name = measurements.traits(probe.proposer).name
            drafts |= {request: SpecMethod(name, k) for request, k in probe.lengths.items()}
        lookups = {t.name for t in map(measurements.traits, measurements.candidates()) if t.lookup}
        verify_caps = {
            r: measurements.verify_all for r, method in drafts.items() if method.proposer in lookups
        }
        return StepPlan(
            drafts, shadows=self._explorer.shadows(rows, drafts), verify_caps=verify_caps
        )

    def observe(self, step: StepResult) -> None:
        """Takes a step: the budgets of probes and shadows grow."""
        self._explorer.earn(step.seconds)

    def state(self) -> dict[str, Any]:
        """The proposer in use."""
        names = {index: name for name, index in self._measurements.loaded.items()}
        return {"proposer": NONE if self._current is None else names.get(self._current, NONE)}

    def _best(self, kind: RequestClass) -> int | None:
        measurements = self._measurements
        able = [
            i
            for i in measurements.candidates()
            if measurements.is_proven(i)
            and measurements.acceptance.mean_rate(i, kind, 1) >= self.parameters.min_acceptance
        ]
        if not able:
            return None
        scores = {i: self.score(i, kind) for i in able}
        best = max(able, key=scores.__getitem__)
        current = self._current
        if current in scores and scores[current] * (1 + self.parameters.hysteresis) >= scores[best]:
            return current
        return best if measurements.is_proven(best) else None


class QualityFirstPolicy(RankingPolicy):
    """The highest acceptance rate."""

    def score(self, proposer: int, request_class: RequestClass) -> float:
        """The expected share of accepted tokens among its k, where it finds a draft."""
        k = self._measurements.traits(proposer).num_speculative_tokens
        return self._measurements.acceptance.mean_rate(proposer, request_class, k)


class LatencyFirstPolicy(RankingPolicy):
    """The least time per drafted token."""

    def score(self, proposer: int, request_class: RequestClass) -> float:
        """Drafted tokens per second, for one row."""
        k = self._measurements.traits(proposer).num_speculative_tokens
        seconds = self._measurements.draft_times[proposer].seconds(1, k, k, 0)
        return k / max(seconds, 1e-9)
