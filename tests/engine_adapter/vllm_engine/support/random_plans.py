"""A scheduler with random plans: another proposer and another k for each row in each step."""

import random
from typing import Any

from engine_adapter.policies.contract import StepPlan, StepView
from engine_adapter.types import SpecMethod
from engine_adapter.vllm_engine.core.scheduler import SpecgateScheduler
from engine_adapter.vllm_engine.wire import SpecgateConfig


class RandomPolicy:
    """Plans a random proposer or plain decoding for each row; the same for the same steps.

    Args:
        choices: proposer -> its k.
    """

    def __init__(self, choices: dict[str, int]) -> None:
        self._choices = list(choices.items())
        self._rng = random.Random(0)

    def plan(self, view: StepView) -> StepPlan:
        plan = {}
        for row in view.rows:
            if self._rng.random() < 0.1:
                continue
            name, k = self._rng.choice(self._choices)
            drawn = self._rng.randint(1, k)
            plan[row.request_id] = SpecMethod(name, min(drawn, row.draft_budget))
        return plan


class RandomPlanScheduler(SpecgateScheduler):
    """Plans at random for every request with a spec method other than plain decoding."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        proposers = SpecgateConfig.of(vllm_config).proposers
        self.row_table.policy = RandomPolicy({s.name: s.num_speculative_tokens for s in proposers})
