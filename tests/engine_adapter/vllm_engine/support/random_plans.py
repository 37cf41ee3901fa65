"""A scheduler with random plans: another proposer and another k for each row in each step.

Rows whose method is `RANDOM` get random plans, with fallbacks and shadows. All others are planned
as usual, by their proposer or by their policy.
"""

import random
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_adapter.policies.contract import RowView, StepPlan, StepView
from engine_adapter.policies.planner import Planner
from engine_adapter.policies.timing import DraftTimeModel, StepTimeModel
from engine_adapter.seam.types import SpecMethod
from engine_adapter.vllm_engine.core.row_table import RowTable
from engine_adapter.vllm_engine.core.scheduler import (
    SpecgateAsyncScheduler,
    SpecgateScheduler,
)
from engine_adapter.vllm_engine.core.slow_rows import SlowRows
from engine_adapter.vllm_engine.wire import SpecgateConfig
from tests.engine_adapter.vllm_engine.support.live import CHEAT, RANDOM

UNPLANNED = frozenset({"prediction", "grammar", CHEAT})
"""Proposers that only a request names: they need a prediction or a constraint, or cheat."""


class RandomPolicy:
    """Random plans; the same for the same steps.

    Args:
        choices: proposer -> its k.
        lookups: those whose drafts are cut at random.
        sole_proposer: it makes all drafts of most steps, without fallbacks, cuts or shadows.
        seed: of the choices.
    """

    def __init__(
        self,
        choices: Mapping[str, int],
        lookups: Collection[str] = (),
        sole_proposer: str | None = None,
        seed: int = 0,
    ) -> None:
        self._choices = list(choices.items())
        self._lookups = lookups
        self._longest = max(choices.values())
        self._sole_proposer = sole_proposer
        self._rng = random.Random(seed)

    def plan(self, view: StepView) -> StepPlan:
        """For a row: none or a proposer; half the time a fallback and a cut; any shadows."""
        drafts, fallbacks, verify_caps = {}, {}, {}
        shadows: dict[str, list[str]] = {}
        if self._sole_proposer is not None and self._rng.random() < 0.85:
            rows = [row for row in view.rows if self._rng.random() < 0.9]
            return StepPlan(
                {row.request_id: self._method(row, self._sole_proposer) for row in rows}
            )
        for row in view.rows:
            for name, _ in self._choices:
                if row.draft_budget and self._rng.random() < 0.05:
                    shadows.setdefault(name, []).append(row.request_id)
            if self._rng.random() < 0.1:
                continue
            drafts[row.request_id] = self._method(row)
            if self._rng.random() < 0.5:
                fallbacks[row.request_id] = self._method(row)
            if drafts[row.request_id].proposer in self._lookups and self._rng.random() < 0.5:
                verify_caps[row.request_id] = [
                    self._rng.randint(0, n) for n in range(self._longest + 1)
                ]
        return StepPlan(drafts, fallbacks, shadows, verify_caps)

    def _method(self, row: RowView, name: str | None = None) -> SpecMethod:
        if name is None:
            name, _ = self._rng.choice(self._choices)
        k = dict(self._choices)[name]
        return SpecMethod(name, min(self._rng.randint(1, k), row.draft_budget))


class FreeTokens(StepTimeModel):
    """A machine on which a verified token costs nothing; learns nothing."""

    def add(self, rows: int, tokens: int, context: float, seconds: float) -> float:
        """The prediction."""
        return self.plain_seconds(rows, context)


class FreeDrafts(DraftTimeModel):
    """A proposer that costs nothing; learns nothing."""

    def add(self, rows: int, longest: int, tokens: int, catchup: int, seconds: float) -> None:
        """Nothing."""


class RandomPlanner(Planner):
    """Plans the rows of `RANDOM` at random, all others as usual.

    Policies believe that drafts cost nothing, so they draft on every machine and at every load.

    Attributes:
        fallbacks, outcomes, cuts: how many the workers reported; `snapshot` shows them.
        lookups: how many the device made for the steps: see `early_on_cpu`.
        slow_rows: those of the scheduler; `snapshot` shows how many were set aside.
    """

    def __init__(self, config: SpecgateConfig, max_k: int, sole_proposer: str | None) -> None:
        traits = [one for one in config.traits if one.name not in UNPLANNED]
        super().__init__(traits, max_k, config.policies, config.primary)
        choices = {s.name: s.num_speculative_tokens for s in config.proposers}
        for name in UNPLANNED:
            choices.pop(name, None)
        lookups = {one.name for one in traits if one.lookup}
        self._random = RandomPolicy(choices, lookups, sole_proposer)
        self.measurements.step_time = FreeTokens()
        self.measurements.draft_times = [FreeDrafts() for _ in traits]
        self.fallbacks = self.outcomes = self.cuts = self.lookups = 0
        self.slow_rows = RandomSlowRows()

    def plan(self, view: StepView) -> StepPlan:
        """Both plans together."""
        mine = [row for row in view.rows if row.spec_method.proposer == RANDOM]
        others = [row for row in view.rows if row.spec_method.proposer != RANDOM]
        planned = super().plan(replace(view, rows=others))
        drawn = self._random.plan(StepView(mine))
        self.measurements.note_lengths(mine)
        self.notes.add_lag(self.measurements.mark_read(drawn.drafts.items()))
        return StepPlan(
            {**planned.drafts, **drawn.drafts},
            {**planned.fallbacks, **drawn.fallbacks},
            _joined(planned.shadows, drawn.shadows),
            {**planned.verify_caps, **drawn.verify_caps},
        )

    def snapshot(self) -> dict[str, Any]:
        """The measurements, and the counts."""
        names = ("fallbacks", "outcomes", "cuts", "lookups")
        counts = {name: getattr(self, name) for name in names}
        return {**super().snapshot(), **counts, "set_aside": self.slow_rows.count}


def _joined(
    one: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    return {name: [*one.get(name, ()), *other.get(name, ())] for name in {**one, **other}}


class RandomSlowRows(SlowRows):
    """Sets rows aside at random, whatever their format; the drafts of half of them are dropped.

    Attributes:
        count: the rows that were set aside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._rng = random.Random(0)

    def set_aside(self, running: Sequence[Any], *, others_wait: bool, drops_drafts: bool) -> None:
        """A tenth of the rows; never all of them."""
        for request in running:
            request.next_decode_eligible_step = 0
        for request in running[1:]:
            if self._rng.random() < 0.1:
                self.count += 1
                request.next_decode_eligible_step = sys.maxsize
                if drops_drafts and self._rng.random() < 0.5:
                    request.spec_token_ids = []


class RandomPlans:
    """Mixed into a scheduler: it has a `RandomPlanner` and `RandomSlowRows`.

    Attributes:
        sole_proposer: see `RandomPolicy`.
    """

    sole_proposer: str | None = None
    row_table: RowTable
    num_spec_tokens: int
    _slow_rows: SlowRows

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]
        config = SpecgateConfig.from_vllm_config(vllm_config)
        self._planner = RandomPlanner(config, self.num_spec_tokens, self.sole_proposer)
        self.row_table.planner = self._planner
        self._slow_rows = self._planner.slow_rows

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Counts fallbacks, outcomes and cuts, for the test that they happen."""
        if report := getattr(model_runner_output, "specgate_report", None):
            self._planner.fallbacks += len(report.fallbacks)
            self._planner.outcomes += len(report.outcomes)
            self._planner.cuts += len(report.dropped)
        return super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output
        )


class RandomPlanScheduler(RandomPlans, SpecgateScheduler):
    """The scheduler with random plans."""


class RandomPlanAsyncScheduler(RandomPlans, SpecgateAsyncScheduler):
    """The scheduler with random plans that schedules asynchronously."""
