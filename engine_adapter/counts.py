"""What speculation did, counted: for one request, and for one step. Plain types of the seam."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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


@dataclass(frozen=True, slots=True)
class StepReport:
    """One engine step, for the metrics.

    Attributes:
        kind: `prefill` (at least one row read its prompt), `verify` (drafts were verified) or
            `decode`.
        seconds: from the step's scheduling to its outputs.
        verified: counts of this step by proposer; `none` holds what was emitted without drafts.
        draft_seconds: time in each proposer that drafted.
        catchup_tokens: positions each proposer caught up before it drafted.
        faults: proposers that failed in this step, and why.
        quarantined: those of them that are not asked any more.
    """

    kind: str
    seconds: float
    verified: Mapping[str, ProposerCounts]
    draft_seconds: Mapping[str, float]
    catchup_tokens: Mapping[str, int]
    faults: Mapping[str, str] = field(default_factory=dict)
    quarantined: tuple[str, ...] = ()
