"""A scheduler whose engine drafts on the CPU as on a device: before it reads a step's tokens."""

from typing import Any

from engine_adapter.vllm_engine.worker.early_lookups import EarlyLookup, EarlyLookups
from engine_adapter.vllm_engine.worker.step_drafts import LateStepDrafts
from tests.engine_adapter.vllm_engine.support.random_plans import RandomPlanAsyncScheduler

_TAKE = EarlyLookups.take


class EarlyDraftScheduler(RandomPlanAsyncScheduler):
    """Random plans, most of which `ngram` drafts alone.

    The worker is in the same process; its drafts are early from the first scheduler on.
    """

    sole_proposer = "ngram"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        planner = self._planner

        def take(lookups: EarlyLookups, lookup: EarlyLookup, *ended: Any) -> Any:
            planner.lookups += 1
            return _TAKE(lookups, lookup, *ended)

        EarlyLookups.take = take  # type: ignore[method-assign, assignment]
        always = property(lambda _: True, lambda *_: None)
        LateStepDrafts.drafts_early = always  # type: ignore[assignment]

    def update_from_output(self, *args: Any) -> Any:
        """Counts a step, with evidence: a test reads it as soon as its requests have ended."""
        self.row_table._next_snapshot = 0.0
        return super().update_from_output(*args)
