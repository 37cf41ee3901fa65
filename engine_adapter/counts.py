"""Statistics of speculative decoding: of a request and of an engine step. Plain seam types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class ProposerCounts:
    """What one proposer did for one request, or in one step for all.

    Attributes:
        drafts: verification steps that held its drafts.
        drafted: draft tokens verified.
        accepted: draft tokens kept.
        accepted_per_position: entry i counts the steps that kept the draft at position i;
            it falls from left to right and sums to `accepted`.
        emitted: tokens emitted by the steps that verified its drafts, the bonus token included.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()
    emitted: int = 0

    def __add__(self, other: "ProposerCounts") -> "ProposerCounts":
        """The counts of both together."""
        mine, theirs = self.accepted_per_position, other.accepted_per_position
        return ProposerCounts(
            drafts=self.drafts + other.drafts,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            accepted_per_position=tuple(a + b for a, b in zip_longest(mine, theirs, fillvalue=0)),
            emitted=self.emitted + other.emitted,
        )


@dataclass(frozen=True, slots=True)
class SpecStats:
    """A request's speculation so far; cumulative, so that the last one is the whole.

    Attributes:
        decode_steps: steps that emitted tokens, the first one (end of prefill) left out.
        decode_tokens: the tokens that those steps emitted.
        by_proposer: the counts of every proposer that drafted for the request.
    """

    decode_steps: int = 0
    decode_tokens: int = 0
    by_proposer: Mapping[str, ProposerCounts] = field(default_factory=dict)

    def __add__(self, other: "SpecStats") -> "SpecStats":
        """The statistics of both together."""
        by_proposer = dict(self.by_proposer)
        for name, counts in other.by_proposer.items():
            by_proposer[name] = by_proposer.get(name, ProposerCounts()) + counts
        return SpecStats(
            self.decode_steps + other.decode_steps,
            self.decode_tokens + other.decode_tokens,
            by_proposer,
        )


class StepKind(StrEnum):
    """The work of an engine step.

    `prefill`: at least one row read its prompt. `verify`: drafts were verified. `decode`: neither.
    """

    PREFILL = "prefill"
    VERIFY = "verify"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class StepReport:
    """One engine step, for the metrics.

    Attributes:
        seconds: from the step's scheduling to its outputs.
        verified: counts of this step by proposer; `none` holds what was emitted without drafts.
        draft_seconds: time in each proposer that drafted.
        drafted: tokens that each of them drafted in this step, to be verified in the next.
        catchup_tokens: positions each proposer caught up before it drafted.
        faults: proposers that failed in this step, and why.
        quarantined: proposers that this step quarantined.
    """

    kind: StepKind
    seconds: float
    verified: Mapping[str, ProposerCounts]
    draft_seconds: Mapping[str, float]
    drafted: Mapping[str, int]
    catchup_tokens: Mapping[str, int]
    faults: Mapping[str, str] = field(default_factory=dict)
    quarantined: tuple[str, ...] = ()
