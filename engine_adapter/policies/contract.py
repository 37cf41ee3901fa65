"""The contract of a policy: before a step runs, it chooses a proposer and a k for each row.

Pure Python and numpy: no torch, no vLLM. The scheduler calls it, so that every rank of the
engine follows one plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine_adapter.types import SpecMethod


@dataclass(frozen=True, slots=True)
class RowView:
    """A request of the step whose proposer drafts for it, or reads a part of its prompt.

    Attributes:
        spec_method: the request's method: pinned, or the active one; never plain decoding.
        draft_budget: the most draft tokens that the row's context and `max_tokens` allow; 0
            where the step ends in the middle of the prompt, so that a proposer with KV can
            read along.
    """

    request_id: str
    spec_method: SpecMethod
    draft_budget: int


@dataclass(frozen=True, slots=True)
class StepView:
    """One step, before it runs: the rows that a proposer drafts for or reads."""

    rows: Sequence[RowView]


StepPlan = Mapping[str, SpecMethod]
"""Request id -> the proposer and k that draft for it at the end of the step.

With k = 0 the proposer reads the row's tokens and drafts nothing. A request that is absent gets no
drafts.
"""


class Policy(Protocol):
    """Plans every step. Called in the scheduler: it must take microseconds."""

    def plan(self, view: StepView) -> StepPlan:
        """Chooses proposer and k for each row; k is at most the row's `draft_budget`.

        The choice may depend on anything but the token that the step is about to sample.
        Otherwise the output would no longer have the target's distribution.
        """
        ...
