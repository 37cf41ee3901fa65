"""The step loop: plan, wait for the time of a step, emit."""

import asyncio
from collections.abc import Mapping, Sequence

from engine_adapter.fake.batch import Batch
from engine_adapter.fake.metrics import FakeMetrics
from engine_adapter.fake.options import FakeOptions
from engine_adapter.fake.planning import Row, StepPlanning, VerifiedDraft
from engine_adapter.fake.sequence import FakeSequence, InjectedFault
from engine_adapter.fake.tokens import accepted_drafts
from engine_adapter.seam.config import HangPolicy
from engine_adapter.seam.counts import ProposerCounts, StepKind, StepReport
from engine_adapter.seam.errors import EngineDead, EngineError
from engine_adapter.seam.interface import EngineObserver
from engine_adapter.seam.types import NONE


class Stepper:
    """Runs steps while the batch has sequences.

    Attributes:
        draft_ms: proposer -> milliseconds per drafted token, for those that have drafted.
        hangs: the current step does not end.
    """

    def __init__(
        self,
        batch: Batch,
        planning: StepPlanning,
        options: FakeOptions,
        metrics: FakeMetrics,
        observer: EngineObserver,
        hang: HangPolicy,
    ) -> None:
        """Starts nothing; `run` does. An injected hang lasts as long as `hang` allows."""
        self.draft_ms: dict[str, float] = {}
        self.hangs = False
        self._batch = batch
        self._planning = planning
        self._options = options
        self._metrics = metrics
        self._observer = observer
        self._hang = hang
        self._work = asyncio.Event()
        self._steps = 0

    def wake(self) -> None:
        """Ends the wait for a sequence."""
        self._work.set()

    def show_load(self) -> None:
        """Updates the gauges."""
        batch = self._batch
        self._metrics.set_load(len(batch.running), batch.num_waiting, batch.kv_usage)

    async def run(self) -> None:
        """Steps without end. Raises `EngineDead` when an option injects a crash or a hang."""
        clock = asyncio.get_running_loop().time
        self._steps, self.hangs = 0, False
        while True:
            await self._work.wait()
            began_s = clock()
            self._batch.admit(began_s)
            running = [s for s in self._batch.running if not self._has_fault(s, InjectedFault.HANG)]
            rows = self._planning.rows(running, self._batch.num_waiting)
            self.show_load()
            if not rows:
                self._work.clear()
                continue
            await self._inject_fault()
            await asyncio.sleep(max(0.0, began_s + self._seconds(rows) - clock()))
            self._emit(rows, began_s, clock())
            self._steps += 1

    async def _inject_fault(self) -> None:
        options = self._options
        if options.fake_die_after_steps and self._steps >= options.fake_die_after_steps:
            raise EngineDead(f"fake_die_after_steps ended it after {self._steps} steps")
        if options.fake_hang_after_steps and self._steps >= options.fake_hang_after_steps:
            self.hangs = True
            if not self._hang.idle_s:
                await asyncio.Event().wait()
            await asyncio.sleep(self._hang.idle_s)
            raise EngineDead(f"did not answer for {self._hang.idle_s:g} s")

    def _has_fault(self, sequence: FakeSequence, fault: InjectedFault) -> bool:
        """Whether the sequence has this fault and has emitted the tokens that come before it."""
        is_due = sequence.num_output_tokens >= self._options.fake_trouble_after_tokens
        return is_due and sequence.injected_fault is fault

    def _seconds(self, rows: Sequence[Row]) -> float:
        options = self._options
        prefilled = sum(
            len(row.sequence.request.prompt_token_ids) - row.sequence.num_cached_tokens
            for row in rows
            if not row.sequence.prefilled
        )
        slow = options.fake_slow_step_every and not (self._steps + 1) % options.fake_slow_step_every
        milliseconds = (
            options.fake_step_ms
            + (options.fake_slow_step_ms if slow else 0.0)
            + options.fake_prefill_token_ms * prefilled
            + options.fake_verify_token_ms * sum(row.drafted for row in rows)
            + options.fake_draft_token_ms * _longest(rows)
        )
        return milliseconds / 1000

    def _emit(self, rows: Sequence[Row], began_s: float, now_s: float) -> None:
        kind = _kind(rows)
        live = set(self._batch.running)
        verified: dict[str, ProposerCounts] = {}
        outcomes: list[VerifiedDraft] = []
        for row in rows:
            if row.sequence not in live:
                continue
            if self._has_fault(row.sequence, InjectedFault.FAIL):
                self._fail(row.sequence, now_s)
                continue
            outcomes += self._shadow_outcomes(row)
            counts = self._advance(row, now_s)
            previous = verified.get(row.proposer)
            verified[row.proposer] = previous + counts if previous else counts
            if row.drafted:
                request_id = row.sequence.request.request_id
                outcomes.append(
                    VerifiedDraft(request_id, row.proposer, row.drafted, counts.accepted)
                )
        self._metrics.on_step(verified)
        self.show_load()
        self._report(rows, kind, verified, outcomes, now_s - began_s)

    def _report(
        self,
        rows: Sequence[Row],
        kind: StepKind,
        verified: Mapping[str, ProposerCounts],
        outcomes: Sequence[VerifiedDraft],
        seconds: float,
    ) -> None:
        draft_seconds = self._draft_seconds(rows)
        drafting_s = self._options.fake_draft_token_ms * _longest(rows) / 1000
        policy = self._planning.observe(
            rows,
            outcomes,
            sum(counts.emitted for counts in verified.values()),
            draft_seconds,
            max(seconds - drafting_s, 0.0),
            prefill=kind == StepKind.PREFILL,
        )
        report = StepReport(
            kind=kind,
            seconds=seconds,
            verified=verified,
            draft_seconds=draft_seconds,
            proposed_tokens={
                name: counts.drafted for name, counts in verified.items() if name != NONE
            },
            catchup_tokens={},
            policy=policy,
        )
        self._observer.on_step(report)

    def _shadow_outcomes(self, row: Row) -> list[VerifiedDraft]:
        return [
            VerifiedDraft(
                row.sequence.request.request_id,
                proposer,
                drafted,
                self._accepted(row.sequence, proposer, drafted),
            )
            for proposer, drafted in row.shadows
        ]

    def _accepted(self, sequence: FakeSequence, proposer: str, drafted: int) -> int:
        rate = self._options.acceptance(proposer)
        return accepted_drafts(sequence.key, sequence.num_output_tokens, proposer, drafted, rate)

    def _draft_seconds(self, rows: Sequence[Row]) -> dict[str, float]:
        longest: dict[str, int] = {}
        for row in rows:
            if row.drafted:
                longest[row.proposer] = max(row.drafted, longest.get(row.proposer, 0))
        token_ms = self._options.fake_draft_token_ms
        self.draft_ms |= dict.fromkeys(longest, token_ms)
        return {name: token_ms * k / 1000 for name, k in longest.items()}

    def _advance(self, row: Row, now_s: float) -> ProposerCounts:
        sequence = row.sequence
        is_first = not sequence.prefilled
        since_s = sequence.times.arrived_s if is_first else sequence.times.last_token_s
        accepted = self._accepted(sequence, row.proposer, row.drafted)
        if is_first:
            self._metrics.on_admission(sequence)
        counts = sequence.advance(row.proposer, row.drafted, accepted, now_s)
        self._metrics.on_tokens(counts.emitted, now_s - since_s, is_first=is_first)
        if sequence.finish_reason is not None:
            self._batch.discard(sequence)
            self._metrics.on_end(sequence, sequence.finish_reason.value, now_s)
        return counts

    def _fail(self, sequence: FakeSequence, now_s: float) -> None:
        self._batch.discard(sequence)
        self._metrics.on_end(sequence, "error", now_s)
        sequence.outbox.put_nowait(EngineError("fake_fail_prompt failed this request"))


def _longest(rows: Sequence[Row]) -> int:
    return max(row.drafted for row in rows)


def _kind(rows: Sequence[Row]) -> StepKind:
    if any(not row.sequence.prefilled for row in rows):
        return StepKind.PREFILL
    return StepKind.VERIFY if any(row.drafted for row in rows) else StepKind.DECODE
