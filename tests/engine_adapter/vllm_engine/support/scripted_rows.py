"""A row table whose planner returns given plans, and records what it is told."""

from typing import Any

from engine_adapter.policies.contract import DraftOutcome, StepPlan, StepView
from engine_adapter.policies.planner import Planner, StepOutcome
from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.vllm_engine.support.row_steps import DRAFT, NGRAM, TRAITS, RowSteps

AUTO = SpecMethod("auto", 5)


class ScriptedPlanner(Planner):
    """Returns given plans, in order and then none; records what it is told.

    Attributes:
        plans: the plans that follow.
        outcomes: the steps that it learned from.
        views: the steps that it planned.
    """

    def __init__(self, *plans: StepPlan) -> None:
        super().__init__(TRAITS, 5)
        self.plans = list(plans)
        self.outcomes: list[StepOutcome] = []
        self.views: list[StepView] = []

    def plan(self, view: StepView) -> StepPlan:
        self.views.append(view)
        self.measurements.note_lengths(view.rows)
        return self.plans.pop(0) if self.plans else StepPlan()

    def observe(self, outcome: StepOutcome) -> Any:
        self.outcomes.append(outcome)
        return super().observe(outcome)

    def _is_sample(self) -> bool:
        """Every step is learned from, as under a policy."""
        return True

    def seen(self) -> list[DraftOutcome]:
        """The drafts of the last step that it learned from."""
        return list(self.outcomes[-1].drafts)


def scripted(*plans: StepPlan, drafts_late: bool = False) -> tuple[RowSteps, ScriptedPlanner]:
    """A table with one row `r` under a policy."""
    used = ScriptedPlanner(*plans)
    rows = RowSteps(used, drafts_late=drafts_late)
    rows.admit("r", AUTO)
    return rows, used


BOTH = StepPlan({"r": NGRAM}, {"r": DRAFT})
