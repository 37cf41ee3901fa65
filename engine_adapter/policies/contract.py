"""What a policy is: it looks at a step before it runs and says who drafts how much.

Pure Python and numpy: no torch, no vLLM. The scheduler calls it, so that every rank of the
engine follows one plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine_adapter.types import SpecMethod


@dataclass(frozen=True, slots=True)
class RowView:
    """A request of the step that drafts can follow.

    Attributes:
        spec_method: the request's method: pinned, routed or the active one; never plain decoding.
        room: the most draft tokens that the row's context and `max_tokens` leave room for; 0
            where the step ends in the middle of the prompt, so that a proposer with KV can
            read along.
    """

    request_id: str
    spec_method: SpecMethod
    room: int


@dataclass(frozen=True, slots=True)
class StepView:
    """One step, before it runs: the rows that may be drafted for."""

    rows: Sequence[RowView]


StepPlan = Mapping[str, SpecMethod]
"""Request id -> who drafts for it at the step's end; absent means nobody, k = 0 read only."""


class Policy(Protocol):
    """Plans every step. Called in the scheduler: it must take microseconds."""

    def plan(self, view: StepView) -> StepPlan:
        """Chooses proposer and k for each row.

        The choice may depend on anything but the token that the step is about to sample, or
        output would no longer be distributed as the target's.
        """
        ...
