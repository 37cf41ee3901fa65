"""Statistics of speculative decoding, for a request and for an engine step. Plain seam types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True, slots=True)
class ProposerCounts:
    """The drafts of one proposer, for one request or for all requests of one step.

    Attributes:
        drafts: drafts verified: one for each row of each step that had draft tokens.
        drafted: draft tokens verified.
        accepted: draft tokens accepted.
        accepted_per_position: entry i counts the drafts whose token at position i was accepted;
            it falls from left to right and sums to `accepted`.
        emitted: tokens that the verifying rows emitted, with the bonus tokens.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()
    emitted: int = 0

    def __add__(self, other: "ProposerCounts") -> "ProposerCounts":
        """The sum, field by field."""
        positions, other_positions = self.accepted_per_position, other.accepted_per_position
        return ProposerCounts(
            drafts=self.drafts + other.drafts,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            accepted_per_position=tuple(
                map(sum, zip_longest(positions, other_positions, fillvalue=0))
            ),
            emitted=self.emitted + other.emitted,
        )


@dataclass(frozen=True, slots=True)
class SpecStats:
    """A request's statistics, cumulative from its first step.

    Attributes:
        decode_steps: steps that emitted tokens, without the first one (the end of prefill).
        decode_tokens: the tokens that those steps emitted.
        by_proposer: the counts of every proposer that drafted for the request.
    """

    decode_steps: int = 0
    decode_tokens: int = 0
    by_proposer: Mapping[str, ProposerCounts] = field(default_factory=dict)

    def __add__(self, other: "SpecStats") -> "SpecStats":
        """The sum, field by field and proposer by proposer."""
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
class PolicyStep:
    """The part of the policies in one step.

    Attributes:
        decisions: policy -> proposer, or `none` -> rows that it planned so in this step.
        predicted_s: the step's time as the fitted model predicted it; `None` before a first fit.
        measured_s: the time that this prediction is compared with.
        suspended: policy -> whether its guard holds it at plain decoding.
    """

    decisions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    predicted_s: float | None = None
    measured_s: float | None = None
    suspended: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompiledGrammars:
    """The grammars that an engine has compiled for constraints.

    Attributes:
        number: those that take memory, because they are kept or in use.
        bytes: the memory that they take.
    """

    number: int = 0
    bytes: int = 0

    def __add__(self, other: "CompiledGrammars") -> "CompiledGrammars":
        """The sum, field by field."""
        return CompiledGrammars(self.number + other.number, self.bytes + other.bytes)


NO_GRAMMARS = CompiledGrammars()
"""Those of an engine that has compiled none."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One engine step, for the metrics.

    Attributes:
        seconds: from the step's scheduling to its outputs.
        verified: the step's counts by proposer; `none` has the tokens emitted without drafts.
        draft_seconds: seconds spent in each proposer that drafted.
        proposed_tokens: tokens that each proposer drafted in this step; the next one verifies them.
        catchup_tokens: positions whose KV each proposer computed before it drafted.
        faults: proposers that failed in this step, each with the cause.
        quarantined: proposers that this step quarantined.
        policy: what the policies did; `None` in a step without rows under a policy.
        evidence: every few seconds, what the policies have measured so far: plain JSON.
        grammars: the compiled grammars after the step.
    """

    kind: StepKind
    seconds: float
    verified: Mapping[str, ProposerCounts]
    draft_seconds: Mapping[str, float]
    proposed_tokens: Mapping[str, int]
    catchup_tokens: Mapping[str, int]
    faults: Mapping[str, str] = field(default_factory=dict)
    quarantined: tuple[str, ...] = ()
    policy: PolicyStep | None = None
    evidence: Mapping[str, Any] | None = None
    grammars: CompiledGrammars = NO_GRAMMARS
