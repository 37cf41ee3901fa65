"""The contract of a policy: before a step runs, it chooses what drafts for each row, and how much.

Pure Python and numpy: no torch, no vLLM. The scheduler calls it, so that every rank of the
engine follows one plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from engine_adapter.seam.types import SpecMethod


class RequestClass(IntEnum):
    """Requests whose drafts are accepted alike, so that they share their measurements.

    `greedy`: at temperature 0. `sampled`: at a higher one. `structured`: with a constraint on the
    text, at any temperature.
    """

    GREEDY = 0
    SAMPLED = 1
    STRUCTURED = 2


@dataclass(frozen=True, slots=True)
class ProposerTraits:
    """A loaded proposer, as policies see it.

    Attributes:
        lookup: it drafts on the CPU without a model, so that it may draft beside another
            proposer and draft in the shadow.
        keeps_kv: it must catch up on tokens that it has not read.
        ends_early: it may draft fewer tokens than it is asked for, where it is not sure of them, or
            finds no more.
        selectable: policies choose it. They do not choose a cascade, because they choose its
            members, nor a proposer that needs a prediction. They choose a chain only if it begins
            with a model, because they try lookups before a model themselves.
    """

    name: str
    num_speculative_tokens: int
    lookup: bool = False
    keeps_kv: bool = False
    ends_early: bool = False
    selectable: bool = True


@dataclass(frozen=True, slots=True)
class DraftTime:
    """One call of a proposer, as the worker reports it.

    Attributes:
        rows: rows that it was asked for.
        longest: its passes: the largest k among them.
        tokens, catchup: tokens drafted, and tokens of lag removed.
    """

    seconds: float
    rows: int
    longest: int
    tokens: int
    catchup: int


class RowView(NamedTuple):
    """A request of the step that can get drafts, or reads a part of its prompt.

    Attributes:
        spec_method: the request's method: a proposer or a policy, pinned or active; never plain
            decoding. Under a policy its k is the most that the policy may choose.
        draft_budget: the most draft tokens that the row's context and `max_tokens` allow; 0
            where the step ends in the middle of the prompt, so that a proposer with KV can
            read along.
        num_tokens: tokens of the request so far, prompt and output.
        request_class: which measurements are valid for the row.
    """

    request_id: str
    spec_method: SpecMethod
    draft_budget: int
    num_tokens: int = 0
    request_class: RequestClass = RequestClass.GREEDY

    @property
    def limit(self) -> int:
        """The most tokens that may be drafted for it: its method's k, within its budget."""
        return min(self.draft_budget, self.spec_method.num_speculative_tokens)


@dataclass(frozen=True, slots=True)
class StepView:
    """One step, before it runs.

    Attributes:
        rows: the rows that a proposer drafts for or reads.
        num_running: all rows of the step, also those that decode plainly.
        num_waiting: requests in the engine's queue.
        fixed_drafts: draft tokens that the rows of other policies, and of proposers, get.
    """

    rows: Sequence[RowView]
    num_running: int = 0
    num_waiting: int = 0
    fixed_drafts: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What is drafted at the end of the step; the next step verifies it.

    Attributes:
        drafts: request id -> the proposer that drafts, and k. With k = 0 the proposer reads the
            row's tokens and drafts nothing. A request that is absent gets no drafts.
        fallbacks: request id -> the proposer that drafts if the one of `drafts` finds nothing
            that is kept.
        shadows: proposer -> the requests for which it drafts without verification. Its drafts are
            compared with the tokens that the target writes anyway.
        verify_caps: request id -> how much of the lookup's draft is verified: of a draft of n
            tokens the first `verify_caps[n]`, at most k. With 0 the draft is dropped as if nothing
            was found. The lookup is asked for its whole k, so that n says how sure it is. Without
            an entry everything is verified.
    """

    drafts: Mapping[str, SpecMethod] = field(default_factory=dict)
    fallbacks: Mapping[str, SpecMethod] = field(default_factory=dict)
    shadows: Mapping[str, Sequence[str]] = field(default_factory=dict)
    verify_caps: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether any proposer is called."""
        return bool(self.drafts or self.shadows)


class DraftOutcome(NamedTuple):
    """What became of a draft, of one row and one proposer.

    Attributes:
        requested_k: the k that was asked for.
        drafted: tokens that the proposer drafted; 0 if it found nothing.
        verified: how many of them were compared with the target's.
        accepted: how many of these agreed, up to the first that differed.
    """

    request_id: str
    proposer: str
    requested_k: int
    drafted: int
    verified: int
    accepted: int


NO_PLAN = StepPlan()
"""No proposer is called."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step without prefill, as a policy sees it afterwards.

    Attributes:
        emitted: tokens that its rows emitted.
        rows: its rows.
        seconds: its time, with that of the proposers.
        slowness: its time over that of a plain step, by the fitted model; one pause of the
            machine counts at most as twice the predicted time.
        verified: whether it had drafts.
    """

    emitted: int
    rows: int
    seconds: float
    slowness: float
    verified: bool


class Policy(Protocol):
    """Plans every step. Called in the scheduler: it must take microseconds."""

    def plan(self, view: StepView) -> StepPlan:
        """Chooses proposer and k for each row; k is at most the row's k and `draft_budget`.

        The choice may depend on anything but the tokens that the step is about to sample.
        Otherwise the output would no longer have the target's distribution.
        """
        ...
