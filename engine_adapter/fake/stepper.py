"""The step loop: plan, wait as long as a step takes, emit."""

import asyncio
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from engine_adapter.counts import StepKind, StepReport
from engine_adapter.errors import EngineError
from engine_adapter.fake.batch import Batch
from engine_adapter.fake.metrics import FakeMetrics
from engine_adapter.fake.options import FakeOptions
from engine_adapter.fake.sequence import Sequence
from engine_adapter.fake.tally import Tallies
from engine_adapter.fake.tokens import accepted_drafts
from engine_adapter.interface import EngineObserver
from engine_adapter.types import NONE


class InjectedDeath(Exception):
    """The death that an option asked for."""


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence's part in a step: who drafted for it, and how much (0 for nobody)."""

    sequence: Sequence
    proposer: str
    drafted: int


class Stepper:
    """Runs steps while there is something to run.

    Attributes:
        draft_ms: proposer -> milliseconds per drafted token, for those that have drafted.
    """

    def __init__(
        self, batch: Batch, options: FakeOptions, metrics: FakeMetrics, observer: EngineObserver
    ) -> None:
        """Starts nothing; `run` does."""
        self.draft_ms: dict[str, float] = {}
        self._batch = batch
        self._options = options
        self._metrics = metrics
        self._observer = observer
        self._work = asyncio.Event()
        self._steps = 0

    def wake(self) -> None:
        """Says that a sequence has come."""
        self._work.set()

    def show_load(self) -> None:
        """Brings the gauges up to date."""
        batch = self._batch
        self._metrics.set_load(len(batch.running), batch.waiting, batch.kv_usage)

    async def run(self) -> None:
        """Steps for ever. Raises `InjectedDeath` when its time has come."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._work.wait()
            began_s = clock()
            self._batch.admit(began_s)
            rows = self._plan()
            self.show_load()
            if not rows:
                self._work.clear()
                continue
            await self._meet_fate()
            await asyncio.sleep(max(0.0, began_s + self._seconds(rows) - clock()))
            self._emit(rows, began_s, clock())
            self._steps += 1

    async def _meet_fate(self) -> None:
        options = self._options
        if options.fake_die_after_steps and self._steps >= options.fake_die_after_steps:
            raise InjectedDeath(f"died after {self._steps} steps, as fake_die_after_steps asks")
        if options.fake_hang_after_steps and self._steps >= options.fake_hang_after_steps:
            await asyncio.Event().wait()

    def _plan(self) -> list[Row]:
        return [_row(s) for s in self._batch.running if s.trouble != "hang" or not self._is_due(s)]

    def _is_due(self, sequence: Sequence) -> bool:
        """Whether a sequence in trouble has emitted what it still may."""
        return sequence.num_output_tokens >= self._options.fake_trouble_after_tokens

    def _seconds(self, rows: Rows[Row]) -> float:
        options = self._options
        read = sum(
            len(row.sequence.request.prompt_token_ids) - row.sequence.num_cached_tokens
            for row in rows
            if not row.sequence.prefilled
        )
        longest = max(row.drafted for row in rows)
        milliseconds = (
            options.fake_step_ms
            + options.fake_prefill_token_ms * read
            + options.fake_draft_token_ms * longest
        )
        return milliseconds / 1000

    def _emit(self, rows: Rows[Row], began_s: float, now_s: float) -> None:
        kind = _kind(rows)
        live = set(self._batch.running)
        tallies = Tallies()
        for row in rows:
            if row.sequence not in live:
                continue
            if row.sequence.trouble == "fail" and self._is_due(row.sequence):
                self._fail(row.sequence, now_s)
                continue
            self._advance(row, tallies, now_s)
        verified = tallies.counts()
        self._metrics.on_step(verified)
        self.show_load()
        report = StepReport(
            kind=kind,
            seconds=now_s - began_s,
            verified=verified,
            draft_seconds=self._draft_seconds(rows),
            drafted={name: counts.drafted for name, counts in verified.items() if name != NONE},
            catchup_tokens={},
        )
        self._observer.on_step(report)

    def _draft_seconds(self, rows: Rows[Row]) -> dict[str, float]:
        longest: dict[str, int] = {}
        for row in rows:
            if row.drafted:
                longest[row.proposer] = max(row.drafted, longest.get(row.proposer, 0))
        token_ms = self._options.fake_draft_token_ms
        self.draft_ms |= dict.fromkeys(longest, token_ms)
        return {name: token_ms * k / 1000 for name, k in longest.items()}

    def _advance(self, row: Row, tallies: Tallies, now_s: float) -> None:
        sequence = row.sequence
        first = not sequence.prefilled
        since_s = sequence.times.arrived_s if first else sequence.times.last_token_s
        rate = self._options.acceptance(row.proposer)
        accepted = accepted_drafts(
            sequence.key, sequence.num_output_tokens, row.proposer, row.drafted, rate
        )
        if first:
            self._metrics.on_admission(sequence)
        verified = sequence.advance(row.proposer, row.drafted, accepted, now_s)
        tallies.add(row.proposer, row.drafted, verified.kept, verified.emitted)
        self._metrics.on_tokens(verified.emitted, now_s - since_s, first=first)
        if sequence.finish_reason is not None:
            self._batch.discard(sequence)
            self._metrics.on_end(sequence, sequence.finish_reason.value, now_s)

    def _fail(self, sequence: Sequence, now_s: float) -> None:
        self._batch.discard(sequence)
        self._metrics.on_end(sequence, "error", now_s)
        sequence.outbox.put_nowait(EngineError("this request failed, as fake_fail_prompt asks"))


def _row(sequence: Sequence) -> Row:
    method = sequence.spec_method
    drafted = min(method.num_speculative_tokens, sequence.draft_room) if sequence.prefilled else 0
    if method.proposer == NONE or drafted < 1:
        return Row(sequence, NONE, 0)
    return Row(sequence, method.proposer, drafted)


def _kind(rows: Rows[Row]) -> StepKind:
    if any(not row.sequence.prefilled for row in rows):
        return StepKind.PREFILL
    return StepKind.VERIFY if any(row.drafted for row in rows) else StepKind.DECODE
