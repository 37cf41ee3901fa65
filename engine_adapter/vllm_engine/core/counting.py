"""Counters of the engine's process, and the lists in which they leave it.

Counts travel in two dictionaries of vLLM's that are free when no KV connector is configured, which
Specgate checks at start: `RequestOutput.kv_transfer_params` for a request and
`SchedulerStats.kv_connector_stats` for a step. `wire` decodes them.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from engine_adapter.counts import StepKind
from engine_adapter.types import NONE, SpecMethod
from engine_adapter.vllm_engine.wire import KEY, NUM_TOTALS, DraftReport


class Tally:
    """A growing `ProposerCounts`, stored as the list that is sent.

    Attributes:
        wire: [drafts, drafted, accepted, emitted, accepted at position 0, 1, ...].
    """

    __slots__ = ("wire",)

    def __init__(self) -> None:
        self.wire = [0] * NUM_TOTALS

    def add_verified(self, drafted: int, accepted: int) -> None:
        """Counts one row's verification in one step."""
        wire = self.wire
        wire[0] += 1
        wire[1] += drafted
        wire[2] += accepted
        wire.extend([0] * (NUM_TOTALS + accepted - len(wire)))
        for position in range(NUM_TOTALS, NUM_TOTALS + accepted):
            wire[position] += 1

    def add_emitted(self, tokens: int) -> None:
        """Counts the tokens that one row emitted in one step."""
        self.wire[3] += tokens


@dataclass(slots=True)
class RowState:
    """The state of one live request.

    Attributes:
        spec_method: its current proposer and k.
        pinned: switches do not change `spec_method`.
        streams_stats: each of its outputs carries its statistics, not only the last one.
        drafted_by: the proposer of the drafts that wait for verification.
        verified_by: the proposer whose drafts the current step verifies, or `NONE`.
        steps: steps that emitted tokens, the first one included.
        tokens: tokens emitted, those of the first step included.
        first_tokens: tokens emitted in the first step.
        tallies: counts by proposer.
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

    def add_emitted(self, tokens: int) -> None:
        """Counts the tokens that the request emitted in one step."""
        if not self.steps:
            self.first_tokens = tokens
        self.steps += 1
        self.tokens += tokens
        if self.verified_by != NONE:
            self.tallies[self.verified_by].add_emitted(tokens)

    def to_wire(self) -> dict[str, Any]:
        """The request's statistics so far; see `wire.decode_request`."""
        tallies = {name: tally.wire for name, tally in self.tallies.items()}
        return {KEY: [max(self.steps - 1, 0), self.tokens - self.first_tokens, tallies]}


@dataclass(slots=True)
class StepTally:
    """The counts of one step, over all rows.

    Attributes:
        drafting: the runner's report on the drafts that it made at the end of the step.
        quarantined: proposers that this step's faults quarantined.
        tallies: counts by proposer; `NONE` counts tokens emitted without drafts.
    """

    kind: StepKind = StepKind.DECODE
    drafting: DraftReport = field(default_factory=DraftReport)
    quarantined: list[str] = field(default_factory=list)
    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))

    def to_wire(self, seconds: float) -> dict[str, Any]:
        """The step's report; see `wire.decode_step`. `seconds`: how long the step took."""
        tallies = {name: tally.wire for name, tally in self.tallies.items()}
        drafting = self.drafting
        report = [drafting.seconds, drafting.proposed, drafting.catchup, drafting.faults]
        return {KEY: [self.kind.value, seconds, tallies, *report, self.quarantined]}
