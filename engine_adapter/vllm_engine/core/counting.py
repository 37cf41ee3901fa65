"""Counting in the engine's process, and the compact form in which counts leave it.

Counts travel as plain lists and dictionaries: through `RequestOutput.kv_transfer_params` for
each request, and through `SchedulerStats.kv_connector_stats` for each step. Both are free
dictionaries when no KV connector is configured, which Specgate checks at start.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_adapter.interface import NONE, ProposerCounts, SpecMethod, SpecStats, StepReport

KEY = "specgate"
"""The one key under which Specgate's data stand in a dictionary of vLLM's."""

_FIXED = 4


class Tally:
    """A growing `ProposerCounts`, kept as the list that goes over the wire.

    The list is [drafts, drafted, accepted, emitted, accepted at position 0, 1, ...].
    """

    __slots__ = ("wire",)

    def __init__(self) -> None:
        self.wire = [0] * _FIXED

    def verified(self, drafted: int, accepted: int) -> None:
        """Counts one row's verification step."""
        wire = self.wire
        wire[0] += 1
        wire[1] += drafted
        wire[2] += accepted
        wire.extend([0] * (_FIXED + accepted - len(wire)))
        for position in range(_FIXED, _FIXED + accepted):
            wire[position] += 1

    def emitted(self, tokens: int) -> None:
        """Counts the tokens that a row's step emitted."""
        self.wire[3] += tokens


def decode_counts(wire: list[int]) -> ProposerCounts:
    """A `Tally`'s list as the frozen type."""
    return ProposerCounts(
        drafts=wire[0],
        drafted=wire[1],
        accepted=wire[2],
        emitted=wire[3],
        accepted_per_position=tuple(wire[_FIXED:]),
    )


@dataclass(slots=True)
class RowState:
    """What the scheduler keeps of a live request.

    Attributes:
        method: what it is drafted by now.
        drafted_by: the proposer of the drafts that wait for verification.
        verified_by: the proposer whose drafts the running step verified.
        steps: steps that emitted tokens, the first one included.
    """

    method: SpecMethod
    pinned: bool
    streams_stats: bool
    drafted_by: str = NONE
    verified_by: str = NONE
    steps: int = 0
    tokens: int = 0
    first_tokens: int = 0
    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))

    def emitted(self, tokens: int) -> None:
        """Counts one step of the request."""
        if not self.steps:
            self.first_tokens = tokens
        self.steps += 1
        self.tokens += tokens
        if self.verified_by != NONE:
            self.tallies[self.verified_by].emitted(tokens)

    def to_wire(self) -> dict[str, Any]:
        """The request's statistics so far."""
        tallies = {name: tally.wire for name, tally in self.tallies.items()}
        return {KEY: [max(self.steps - 1, 0), self.tokens - self.first_tokens, tallies]}


def decode_request(params: Mapping[str, Any] | None) -> SpecStats | None:
    """`RowState.to_wire` as the frozen type; `None` where an output brought none."""
    if not params or KEY not in params:
        return None
    steps, tokens, tallies = params[KEY]
    return SpecStats(steps, tokens, {name: decode_counts(w) for name, w in tallies.items()})


@dataclass(slots=True)
class DraftReport:
    """What the drafting of one step took: written by the runner, read by the scheduler.

    Attributes:
        seconds: time in each proposer.
        drafted: tokens that each drafted.
        catchup: lag, in tokens, that each removed.
        faults: those that failed, and why.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    drafted: dict[str, int] = field(default_factory=dict)
    catchup: dict[str, int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class StepTally:
    """One step over all rows.

    Attributes:
        quarantined: proposers that are not asked any more after this step.
    """

    kind: str = "decode"
    quarantined: list[str] = field(default_factory=list)
    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))

    def to_wire(self, seconds: float, drafts: DraftReport | None) -> dict[str, Any]:
        """The step's report; `drafts` is the runner's part, if it drafted."""
        tallies = {name: tally.wire for name, tally in self.tallies.items()}
        drafts = drafts or DraftReport()
        report = [drafts.seconds, drafts.drafted, drafts.catchup, drafts.faults]
        return {KEY: [self.kind, seconds, tallies, *report, self.quarantined]}


def decode_step(stats: Mapping[str, Any]) -> tuple[StepReport, Mapping[str, int]]:
    """`StepTally.to_wire` as the frozen type, and the tokens that each proposer drafted."""
    kind, seconds, tallies, draft_seconds, drafted, catchup, faults, quarantined = stats[KEY]
    verified = {name: decode_counts(wire) for name, wire in tallies.items()}
    report = StepReport(kind, seconds, verified, draft_seconds, catchup, faults, tuple(quarantined))
    return report, drafted
