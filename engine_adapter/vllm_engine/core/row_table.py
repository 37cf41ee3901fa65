"""The live requests as rows of a table: what drafts for each, and what was counted. No vLLM.

One step, in the order of the calls: `start_step`, `plan`, then, when the step's outputs arrive,
`start_count`, `count_verified`, `count_outputs`, `end_count`, `step_stats`. Where scheduling is
asynchronous, the next step is planned before the outputs of the one before arrive.
"""

import time
from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from engine_adapter.policies.contract import (
    NO_PLAN,
    DraftOutcome,
    RequestClass,
    RowView,
    StepPlan,
    StepView,
)
from engine_adapter.policies.planner import Planner, StepOutcome
from engine_adapter.seam.counts import NO_GRAMMARS, CompiledGrammars, StepKind
from engine_adapter.seam.types import NO_SWITCH, NONE, SpecDecodeParams, Switch
from engine_adapter.vllm_engine.core.counting import (
    EMITTED,
    NO_DRAFTS,
    NO_REPORT,
    PlannedDrafts,
    RowDraft,
    RowState,
    ScheduledStep,
    StepSize,
    StepTally,
)
from engine_adapter.vllm_engine.core.quarantine import Quarantine
from engine_adapter.vllm_engine.wire import DraftReport

SNAPSHOT_INTERVAL_S = 1.0
"""Seconds between two reports of what the policies have measured."""


class RowTable:
    """One `RowState` for each live request, and the counts of the current step.

    Args:
        planner: plans every step, and learns from it.
        max_model_len: the longest request, in tokens.
        drafts_late: the drafts of a plan are made when the next step begins to run, so the report
            on them comes with that step's outputs. Else they are made at the end of their own step.

    Attributes:
        quarantine: the proposers that fail repeatedly.
        num_drafting: rows whose method drafts; without any, no step is planned.
    """

    def __init__(self, planner: Planner, max_model_len: int, drafts_late: bool = False) -> None:
        self.planner = planner
        self.quarantine = Quarantine()
        self._max_model_len = max_model_len
        self._drafts_late = drafts_late
        self._rows: dict[str, RowState] = {}
        self.num_drafting = 0
        self._last_running_switch = NO_SWITCH
        self._tally = StepTally()
        # Steps whose outputs have not arrived, the oldest first; then the one that is counted.
        self._scheduled: deque[ScheduledStep] = deque()
        self._step = ScheduledStep(0.0)
        self._newest = NO_DRAFTS
        self._last_end_s = 0.0
        self._next_snapshot = time.monotonic() + SNAPSHOT_INTERVAL_S
        # For the planner: the outcomes of drafts, and tokens that the rows of the step emitted.
        self._draft_outcomes: list[DraftOutcome] = []
        self._emitted = 0
        # Rows of requests that ended, until their last outputs are counted and the planner has seen
        # their last drafts.
        self._ended: dict[str, RowState] = {}

    # -- requests --------------------------------------------------------------------------

    def admit(
        self,
        request_id: str,
        params: SpecDecodeParams,
        streams_stats: bool,
        request_class: RequestClass = RequestClass.GREEDY,
    ) -> None:
        """Adds a row, with its own method or with that of a switch that overtook the request.

        A request that already has a row keeps it: vLLM adds the next input of a streaming session
        under the same id.

        Args:
            streams_stats, request_class: see `RowState`.
        """
        if request_id in self._rows:
            return
        method, last_switch = params.spec_method, self._last_running_switch
        if not params.pinned and params.switch_epoch < last_switch.epoch:
            method = last_switch.spec_method
        self._rows[request_id] = RowState(method, params.pinned, streams_stats, request_class)
        if self._ended.pop(request_id, None) is not None:
            self.planner.measurements.free(request_id)
        self.planner.measurements.admit(request_id, request_class)
        self.num_drafting += method.num_speculative_tokens > 0

    def free(self, request_id: str) -> None:
        """Removes the row of a request that ended, if it has one; its last output may follow."""
        if (row := self._rows.pop(request_id, None)) is not None:
            self.num_drafting -= row.spec_method.num_speculative_tokens > 0
            self._ended[request_id] = row

    def switch(self, switch: Switch) -> None:
        """Gives the switch's method to every row that is not pinned.

        Requests that were admitted before the switch and arrive after it get it in `admit`.
        """
        self._last_running_switch = switch
        for row in self._rows.values():
            if not row.pinned:
                row.spec_method = switch.spec_method
        self.num_drafting = sum(
            row.spec_method.num_speculative_tokens > 0 for row in self._rows.values()
        )

    # -- plan ------------------------------------------------------------------------------

    def start_step(self) -> None:
        """Starts the step's clock."""
        self._scheduled.append(ScheduledStep(time.perf_counter()))

    def plan(
        self,
        scheduled: Collection[str],
        verified: Container[str],
        requests: Mapping[str, Any],
        num_waiting: int = 0,
        resumed: Iterable[str] = (),
        undrafted: Container[str] = (),
    ) -> StepPlan:
        """What drafts for each row after the step.

        Args:
            scheduled: ids of the step's requests.
            verified: ids of those whose drafts the step verifies.
            requests: id -> vLLM's `Request`; see `draft_budget`.
            num_waiting: requests in the queue.
            resumed: ids of those that were preempted, or run again after that.
            undrafted: ids of those that get no drafts, whatever they ask for.
        """
        for request_id in resumed:
            self._rows[request_id].draft = None  # all its drafts were dropped
            self.planner.measurements.requests.forget_reads(request_id)
        step = self._scheduled[-1]
        if not scheduled and self._drafts_late:
            return NO_PLAN  # nothing runs: the report on the newest drafts comes with a later step
        self._end_drafts(step, scheduled, verified)
        previous, self._newest = self._newest, NO_DRAFTS
        step.planned = self.num_drafting > 0
        plan = NO_PLAN
        if step.planned:
            self.planner.measurements.unavailable = self.quarantine.names
            views = self._views(step, scheduled, requests, undrafted)
            plan = self.planner.plan(StepView(views, len(scheduled), num_waiting))
            self._newest = self._drafts_of(plan)
        step.reported = previous if self._drafts_late else self._newest
        return plan

    def _drafts_of(self, plan: StepPlan) -> PlannedDrafts:
        """Gives the rows of the plan their drafts."""
        rows = self._rows
        drafts = {r: RowDraft(m.proposer, m.num_speculative_tokens) for r, m in plan.drafts.items()}
        for request_id, draft in drafts.items():
            rows[request_id].draft = draft
        for request_id, fallback in plan.fallbacks.items():
            if request_id in drafts:
                drafts[request_id].fallback = fallback
        if self._drafts_late:
            for draft in drafts.values():
                other = draft.fallback.num_speculative_tokens if draft.fallback else 0
                draft.places = max(draft.requested_k, other)
        planned = PlannedDrafts(drafts, self.planner.notes)
        for request_id in plan.verify_caps:  # the lookup is asked for its whole k
            draft = planned.by_request[request_id]
            draft.requested_k = self.planner.measurements.k_of(draft.proposer)
        return planned

    def _end_drafts(
        self, step: ScheduledStep, scheduled: Iterable[str], verified: Container[str]
    ) -> None:
        """Moves the drafts that the step verifies, and notes those that found nothing."""
        for request_id in scheduled:
            row = self._rows[request_id]
            draft, row.draft = row.draft, None
            if request_id in verified:
                step.verified[request_id] = draft or RowDraft()
            elif draft is not None:
                self._miss(request_id, draft)

    def _miss(self, request_id: str, draft: RowDraft) -> None:
        """Notes that a proposer found nothing, if it was asked."""
        if draft.requested_k:
            self._draft_outcomes.append(
                DraftOutcome(request_id, draft.proposer, draft.requested_k, 0, 0, 0)
            )

    def draft_places(self, request_id: str) -> int:
        """The most tokens that the newest plan may draft for a request."""
        draft = self._rows[request_id].draft
        return draft.places if draft else 0

    def _views(
        self,
        step: ScheduledStep,
        scheduled: Iterable[str],
        requests: Mapping[str, Any],
        undrafted: Container[str],
    ) -> list[RowView]:
        """The rows that can get drafts, or whose prompt a proposer can read."""
        rows, max_model_len = self._rows, self._max_model_len
        quarantined = self.quarantine.names
        views, context = [], 0
        for request_id in scheduled:
            row, request = rows[request_id], requests[request_id]
            method, num_tokens = row.spec_method, request.num_tokens
            context += num_tokens
            if method.num_speculative_tokens and method.proposer not in quarantined:
                in_prompt = request.is_prefill_chunk
                budget = 0
                if not (in_prompt or request_id in undrafted):
                    budget = draft_budget(request, num_tokens, max_model_len)
                if budget or in_prompt:
                    views.append(RowView(request_id, method, budget, num_tokens, row.request_class))
        step.context = context
        return views

    # -- count -----------------------------------------------------------------------------

    def start_count(self, drafting: DraftReport | None) -> None:
        """Starts the counts of a step whose outputs arrived, and records its faults.

        Args:
            drafting: the runner's report, `None` if it did not draft.
        """
        step = self._step = self._scheduled.popleft()
        self._tally = StepTally(drafting=drafting or NO_REPORT)
        self._emitted = 0
        if drafting is not None:
            drafting.complete()
            self._take_report(drafting, step.reported)
        if self._drafts_late:
            for request_id in [r for r, draft in step.verified.items() if not draft.drafted]:
                self._miss(request_id, step.verified.pop(request_id))

    def _take_report(self, drafting: DraftReport, drafts: PlannedDrafts) -> None:
        """Takes the runner's report on these drafts."""
        if drafting.faults:
            now_s = time.monotonic()
            self._tally.quarantined = self.quarantine.record_faults(drafting.faults, now_s)
        self._draft_outcomes.extend(drafting.outcomes)
        by_request = drafts.by_request
        for request_id, length in drafting.full_lengths.items():
            if draft := by_request.get(request_id):
                draft.full_length = length
        for request_id in drafting.dropped:
            if draft := by_request.get(request_id):  # its outcome comes with those of the shadows
                draft.requested_k = 0
        for request_id in drafting.fallbacks:
            self._fall_back(request_id, drafts)
        for request_id, drafted in drafting.drafted.items():
            if draft := by_request.get(request_id):
                draft.drafted = drafted

    def _fall_back(self, request_id: str, drafts: PlannedDrafts) -> None:
        """Nothing of the row's first proposer is kept, so its drafts are the second one's."""
        draft = drafts.by_request.get(request_id)
        if draft is None or draft.fallback is None or request_id not in self._rows:
            return
        self._miss(request_id, draft)
        draft.proposer = draft.fallback.proposer
        draft.requested_k = draft.fallback.num_speculative_tokens
        draft.full_length = None
        drafts.notes.add_lag(self.planner.measurements.mark_read([(request_id, draft.fallback)]))

    def num_drafted(self, request_id: str) -> int:
        """How many drafts of a request the counted step verifies, if they are made late."""
        draft = self._step.verified.get(request_id)
        return draft.drafted if draft else 0

    def count_verified(self, request_id: str, drafted: int, accepted: int) -> None:
        """Counts a row's verified drafts for the proposer that drafted them."""
        draft = self._step.verified[request_id]
        length = drafted if draft.full_length is None else draft.full_length
        name = draft.proposer
        self._draft_outcomes.append(
            DraftOutcome(request_id, name, draft.requested_k, length, drafted, accepted)
        )
        self._rows[request_id].tallies[name].add_verified(drafted, accepted)
        self._tally.tallies[name].add_verified(drafted, accepted)

    def count_outputs(self, outputs: Iterable[Any]) -> None:
        """Counts the tokens that rows emitted in the step, and attaches their statistics.

        Args:
            outputs: vLLM's `EngineCoreOutput`. One that may be the last that is read of a request
                gets its statistics.
        """
        for output in outputs:
            request_id = output.request_id
            row = self._rows.get(request_id)
            is_last = row is None
            if row is None and (row := self._ended.get(request_id)) is None:
                continue
            if tokens := len(output.new_token_ids):
                draft = self._step.verified.get(request_id)
                name = draft.proposer if draft else NONE
                row.add_emitted(tokens, name)
                self._emitted += tokens
                self._tally.tallies[name].wire[EMITTED] += tokens
            if is_last or row.streams_stats:
                output.kv_transfer_params = row.to_wire()

    def end_count(self, size: StepSize, ready_s: float | None = None) -> None:
        """Ends the counts of a step; the planner learns from it.

        Args:
            ready_s: when its tokens were there, by `time.perf_counter`; `None` is now.
        """
        ended_ids, self._ended = [*self._ended], {}
        outcomes, self._draft_outcomes = self._draft_outcomes, []
        end_s = time.perf_counter() if ready_s is None else ready_s
        # A step that was scheduled early has run since the one before it ended.
        seconds = end_s - max(self._step.started_s, self._last_end_s)
        self._last_end_s = end_s
        if self._step.planned or outcomes:
            self._observe(outcomes, size, seconds)
        self._tally.kind, self._tally.seconds = size.kind, seconds
        for request_id in ended_ids:
            self.planner.measurements.free(request_id)

    def _observe(self, outcomes: Sequence[DraftOutcome], size: StepSize, seconds: float) -> None:
        """Lets the planner learn from the step, and takes its reports."""
        step, tally = self._step, self._tally
        work = tally.drafting.work
        drafting_s = sum(call.seconds for _, call in work)
        tally.policy = self.planner.observe(
            StepOutcome(
                drafts=outcomes,
                work=work,
                rows=size.rows,
                tokens=size.tokens,
                context=step.context,
                emitted=self._emitted,
                verified=size.drafts > 0,
                # Without a plan nothing noted the rows' context, so the time means nothing.
                prefill=size.kind == StepKind.PREFILL or not step.planned,
                seconds=seconds - drafting_s,
                notes=step.reported.notes,
            )
        )
        now_s = time.monotonic()
        if now_s >= self._next_snapshot:
            self._next_snapshot = now_s + SNAPSHOT_INTERVAL_S
            tally.evidence = self.planner.snapshot()

    def step_stats(self, grammars: CompiledGrammars = NO_GRAMMARS) -> dict[str, Any]:
        """The report of the step that was counted last."""
        self._tally.grammars = grammars
        return self._tally.to_wire()


def draft_budget(request: Any, num_tokens: int, max_model_len: int) -> int:
    """How many draft tokens can still be emitted: this step and a bonus token take one each.

    Args:
        request: vLLM's `Request`, which has `num_tokens` so far.
        max_model_len: the longest request, in tokens.
    """
    num_left: int = min(request.max_tokens - request.num_output_tokens, max_model_len - num_tokens)
    return max(0, num_left - 2)
