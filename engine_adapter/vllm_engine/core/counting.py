"""Counting in the engine's process, and the compact form in which counts leave it.

Counts travel as plain lists and dictionaries: through `RequestOutput.kv_transfer_params` for
each request, and through `SchedulerStats.kv_connector_stats` for each step. Both are free
dictionaries when no KV connector is configured, which Specgate checks at start.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from engine_adapter.counts import StepKind
from engine_adapter.types import NONE, SpecMethod
from engine_adapter.vllm_engine.wire import KEY, NUM_TOTALS, DraftReport


class Tally:
    """A growing `ProposerCounts`, kept as the list that goes over the wire.

    The list is [drafts, drafted, accepted, emitted, accepted at position 0, 1, ...].
    """

    __slots__ = ("wire",)

    def __init__(self) -> None:
        self.wire = [0] * NUM_TOTALS

    def verified(self, drafted: int, accepted: int) -> None:
        """Counts one row's verification step."""
        wire = self.wire
        wire[0] += 1
        wire[1] += drafted
        wire[2] += accepted
        wire.extend([0] * (NUM_TOTALS + accepted - len(wire)))
        for position in range(NUM_TOTALS, NUM_TOTALS + accepted):
            wire[position] += 1

    def emitted(self, tokens: int) -> None:
        """Counts the tokens that a row's step emitted."""
        self.wire[3] += tokens


@dataclass(slots=True)
class RowState:
    """What the scheduler keeps of a live request.

    Attributes:
        spec_method: its current method.
        drafted_by: the proposer of the drafts that wait for verification.
        verified_by: the proposer whose drafts the running step verified.
        steps: steps that emitted tokens, the first one included.
    """

    spec_method: SpecMethod
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


@dataclass(slots=True)
class StepTally:
    """One step over all rows.

    Attributes:
        quarantined: proposers that are not asked any more after this step.
    """

    kind: StepKind = StepKind.DECODE
    quarantined: list[str] = field(default_factory=list)
    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))

    def to_wire(self, seconds: float, drafts: DraftReport | None) -> dict[str, Any]:
        """The step's report; `drafts` is the runner's part, if it drafted."""
        tallies = {name: tally.wire for name, tally in self.tallies.items()}
        drafts = drafts or DraftReport()
        report = [drafts.seconds, drafts.drafted, drafts.catchup, drafts.faults]
        return {KEY: [self.kind.value, seconds, tallies, *report, self.quarantined]}
