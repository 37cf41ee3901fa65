"""Counters of the engine's process, and the lists in which they leave it.

Counts travel in two dictionaries of vLLM's that are free when no KV connector is configured, which
Specgate checks at start: `RequestOutput.kv_transfer_params` for a request and
`SchedulerStats.kv_connector_stats` for a step. `wire` decodes them.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from engine_adapter.policies.contract import RequestClass
from engine_adapter.policies.planner import PlanNotes
from engine_adapter.seam.counts import NO_GRAMMARS, CompiledGrammars, PolicyStep, StepKind
from engine_adapter.seam.types import NONE, SpecMethod
from engine_adapter.vllm_engine.wire import KEY, NUM_TOTALS, DraftReport

EMITTED = 3
"""The place of emitted tokens in the list of a tally.

They are added in that place: a call for each row and step would take longer.
"""


NO_REPORT = DraftReport()
"""Of a step after which nothing drafted; it is only read."""


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
        if not accepted:
            return
        if (missing := NUM_TOTALS + accepted - len(wire)) > 0:
            wire.extend([0] * missing)
        for position in range(NUM_TOTALS, NUM_TOTALS + accepted):
            wire[position] += 1


class StepSize(NamedTuple):
    """The work of a step: its rows, and the tokens that the target read, drafts included."""

    kind: StepKind
    rows: int
    tokens: int
    drafts: int


@dataclass(slots=True)
class RowDraft:
    """A draft of one row, from its plan until it is verified.

    Attributes:
        proposer: drafts it, or has drafted it.
        requested_k: the k that was asked for; 0 if none was, or if the plan dropped the draft.
        fallback: the method that drafts where nothing of `proposer` is kept.
        full_length: tokens that were drafted before the plan cut them, if it may cut them.
        places: the most tokens that may wait for verification, if they are made late.
        drafted: tokens that wait for verification, if the scheduler did not get them itself.
    """

    proposer: str = NONE
    requested_k: int = 0
    fallback: SpecMethod | None = None
    full_length: int | None = None
    places: int = 0
    drafted: int = 0


@dataclass(slots=True)
class PlannedDrafts:
    """The drafts of one plan.

    Attributes:
        by_request: request id -> its draft.
        notes: of the plan.
    """

    by_request: dict[str, RowDraft] = field(default_factory=dict)
    notes: PlanNotes = field(default_factory=PlanNotes)


NO_DRAFTS = PlannedDrafts()
"""Those of a step that was not planned; they are only read."""


@dataclass(slots=True)
class ScheduledStep:
    """A step from its plan until its outputs arrive.

    Attributes:
        started_s: when it was scheduled, by `time.perf_counter`.
        planned: whether its rows were planned.
        context: the tokens of these rows in total.
        verified: request id -> the draft that the step verifies.
        reported: the drafts of which the runner's report of the step tells.
    """

    started_s: float
    planned: bool = False
    context: int = 0
    verified: dict[str, RowDraft] = field(default_factory=dict)
    reported: PlannedDrafts = field(default_factory=lambda: NO_DRAFTS)


@dataclass(slots=True)
class RowState:
    """The state of one live request.

    Attributes:
        spec_method: its current proposer and k.
        pinned: switches do not change `spec_method`.
        streams_stats: each of its outputs carries its statistics, not only the last one.
        request_class: which requests' drafts are accepted alike; for the policies.
        draft: its newest draft, which no step verifies yet.
        steps: steps that emitted tokens, the first one included.
        tokens: tokens emitted, those of the first step included.
        first_tokens: tokens emitted in the first step.
        tallies: counts by proposer.
    """

    spec_method: SpecMethod
    pinned: bool
    streams_stats: bool
    request_class: RequestClass = RequestClass.GREEDY
    draft: RowDraft | None = None
    steps: int = 0
    tokens: int = 0
    first_tokens: int = 0
    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))

    def add_emitted(self, tokens: int, proposer: str = NONE) -> None:
        """Counts the tokens that the request emitted in one step.

        Args:
            proposer: drafted those that the step verified; `NONE` without drafts.
        """
        if not self.steps:
            self.first_tokens = tokens
        self.steps += 1
        self.tokens += tokens
        if proposer != NONE:
            self.tallies[proposer].wire[EMITTED] += tokens

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
        policy: what the policies did.
        evidence: every few seconds, what they measured.
        grammars: the compiled grammars.
        tallies: counts by proposer; `NONE` counts tokens emitted without drafts.
        seconds: how long the step took; from its start, or from the end of the one before it.
    """

    kind: StepKind = StepKind.DECODE
    drafting: DraftReport = field(default_factory=lambda: NO_REPORT)
    quarantined: list[str] = field(default_factory=list)
    policy: PolicyStep | None = None
    evidence: Mapping[str, Any] | None = None
    grammars: CompiledGrammars = NO_GRAMMARS
    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    seconds: float = 0.0

    def to_wire(self) -> dict[str, Any]:
        """The step's report; see `wire.decode_step`."""
        tallies = {name: tally.wire for name, tally in self.tallies.items()}
        drafting = self.drafting
        report = [drafting.seconds, drafting.proposed, drafting.catchup, drafting.faults]
        policy = self.policy and [getattr(self.policy, f.name) for f in fields(self.policy)]
        grammars = [self.grammars.number, self.grammars.bytes]
        engine_state = [self.quarantined, policy, self.evidence, grammars]
        return {KEY: [self.kind.value, self.seconds, tallies, *report, *engine_state]}
