"""The live requests as rows of a table: what drafts for each, and what was counted. No vLLM.

One step, in the order of the calls: `start_step`, `plan`, then, when the step's outputs arrive,
`start_count`, `count_verified`, `count_emitted`, `end_count`, `attach_stats`, `step_stats`.
"""

import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from engine_adapter.counts import NO_GRAMMARS, CompiledGrammars, StepKind
from engine_adapter.policies.contract import (
    NO_PLAN,
    DraftFate,
    RequestClass,
    RowView,
    StepPlan,
    StepView,
)
from engine_adapter.policies.planner import Planner, StepOutcome
from engine_adapter.types import NO_SWITCH, NONE, SpecDecodeParams, Switch
from engine_adapter.vllm_engine.core.counting import EMITTED, RowState, StepTally
from engine_adapter.vllm_engine.core.quarantine import Quarantine
from engine_adapter.vllm_engine.wire import DraftReport

SNAPSHOT_INTERVAL_S = 1.0
"""Seconds between two reports of what the policies have measured."""


class RowTable:
    """One `RowState` for each live request, and the counts of the current step.

    Args:
        planner: plans every step, and learns from it.
        max_model_len: the longest request, in tokens.

    Attributes:
        quarantine: the proposers that fail repeatedly.
        num_drafting: rows whose method drafts; without any, no step is planned.
    """

    def __init__(self, planner: Planner, max_model_len: int) -> None:
        self.planner = planner
        self.quarantine = Quarantine()
        self._max_model_len = max_model_len
        self._rows: dict[str, RowState] = {}
        self.num_drafting = 0
        self._last_running_switch = NO_SWITCH
        self._step = StepTally()
        self._step_start = 0.0
        self._next_snapshot = time.monotonic() + SNAPSHOT_INTERVAL_S
        # Of the current step, for the planner: the fates of drafts, and tokens of the rows.
        self._seen: list[DraftFate] = []
        self._context = 0
        self._emitted = 0
        self._planned = False
        # Requests that ended; the planner forgets them when it has seen their last drafts.
        self._ended: list[str] = []

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
        method, last = params.spec_method, self._last_running_switch
        if not params.pinned and params.switch_epoch < last.epoch:
            method = last.spec_method
        self._rows[request_id] = RowState(method, params.pinned, streams_stats, request_class)
        if request_id in self._ended:
            self._ended.remove(request_id)
            self.planner.evidence.free(request_id)
        self.planner.evidence.admit(request_id, request_class)
        self.num_drafting += method.num_speculative_tokens > 0

    def free(self, request_id: str) -> dict[str, Any] | None:
        """Removes a row and returns its statistics; `None` for a request without a row."""
        row = self._rows.pop(request_id, None)
        if row is None:
            return None
        self.num_drafting -= row.spec_method.num_speculative_tokens > 0
        self._ended.append(request_id)
        return row.to_wire()

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
        self._step_start = time.perf_counter()

    def plan(
        self,
        scheduled: Collection[str],
        verified: Container[str],
        requests: Mapping[str, Any],
        num_waiting: int = 0,
        resumed: Iterable[str] = (),
    ) -> StepPlan:
        """What drafts for each row at the end of the step.

        Args:
            scheduled: ids of the step's requests.
            verified: ids of those whose drafts the step verifies.
            requests: id -> vLLM's `Request`; see `draft_budget`.
            num_waiting: requests in the queue.
            resumed: ids of those that were preempted, or run again after that.
        """
        for request_id in resumed:
            row = self._rows[request_id]
            row.asked, row.found = 0, None  # all its drafts were dropped
            self.planner.evidence.requests.forget_reads(request_id)
        self._end_drafts(scheduled, verified)
        self._planned = self.num_drafting > 0
        if not self._planned:
            return NO_PLAN
        self.planner.evidence.unavailable = self.quarantine.names
        views = self._views(scheduled, requests)
        plan = self.planner.plan(StepView(views, len(scheduled), num_waiting))
        rows, fallbacks = self._rows, plan.fallbacks
        for request_id, method in plan.drafts.items():
            row = rows[request_id]
            row.drafted_by, row.asked = method.proposer, method.num_speculative_tokens
            if fallbacks:
                row.fallback = fallbacks.get(request_id)
        for request_id in plan.keeps:  # the lookup is asked for its whole k
            rows[request_id].asked = self.planner.evidence.k_of(rows[request_id].drafted_by)
        return plan

    def _end_drafts(self, scheduled: Iterable[str], verified: Container[str]) -> None:
        """Moves the drafts that the step verifies, and notes those that found nothing."""
        for request_id in scheduled:
            row = self._rows[request_id]
            if request_id in verified:
                row.verified_by, row.verified_asked = row.drafted_by, row.asked
                row.verified_found = row.found
            elif row.asked:
                self._seen.append(DraftFate(request_id, row.drafted_by, row.asked, 0, 0, 0))
            row.asked, row.found, row.fallback = 0, None, None

    def _views(self, scheduled: Iterable[str], requests: Mapping[str, Any]) -> list[RowView]:
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
                budget = 0 if in_prompt else draft_budget(request, num_tokens, max_model_len)
                if budget or in_prompt:
                    views.append(RowView(request_id, method, budget, num_tokens, row.request_class))
        self._context = context
        return views

    # -- count -----------------------------------------------------------------------------

    def start_count(self, kind: StepKind, drafting: DraftReport | None) -> None:
        """Starts the counts of a step whose outputs arrived, and records its faults.

        Args:
            drafting: the runner's report, `None` if it did not draft.
        """
        self._step = StepTally(kind, drafting or DraftReport())
        self._emitted = 0
        if drafting is None:
            return
        if drafting.faults:
            now_s = time.monotonic()
            self._step.quarantined = self.quarantine.record_faults(drafting.faults, now_s)
        self._seen.extend(drafting.fates)
        for request_id, found in drafting.found.items():
            if request_id in self._rows:
                self._rows[request_id].found = found
        for request_id in drafting.dropped:
            if request_id in self._rows:  # its fate comes with those of the shadows
                self._rows[request_id].asked = 0
        for request_id in drafting.fallbacks:
            self._fall_back(request_id)

    def _fall_back(self, request_id: str) -> None:
        """Nothing of the row's first proposer is kept, so its drafts are the second one's."""
        row = self._rows.get(request_id)
        if row is None or row.fallback is None:
            return
        if row.asked:
            self._seen.append(DraftFate(request_id, row.drafted_by, row.asked, 0, 0, 0))
        row.drafted_by, row.asked = row.fallback.proposer, row.fallback.num_speculative_tokens
        row.found = None
        self.planner.evidence.mark_read([(request_id, row.fallback)])

    def count_verified(self, request_id: str, drafted: int, accepted: int) -> None:
        """Counts a row's verified drafts for the proposer that drafted them."""
        row = self._rows[request_id]
        found = drafted if row.verified_found is None else row.verified_found
        name = row.verified_by
        self._seen.append(DraftFate(request_id, name, row.verified_asked, found, drafted, accepted))
        row.tallies[name].add_verified(drafted, accepted)
        self._step.tallies[name].add_verified(drafted, accepted)

    def count_emitted(self, request_id: str, tokens: int) -> None:
        """Counts a row's emitted tokens; the last call of a step for the row."""
        row = self._rows[request_id]
        row.add_emitted(tokens)
        self._emitted += tokens
        self._step.tallies[row.verified_by].wire[EMITTED] += tokens
        row.verified_by = NONE

    def end_count(self, num_rows: int, num_tokens: int, num_drafts: int) -> None:
        """Ends the counts of a step; the planner learns from it.

        Args:
            num_rows: rows of the step.
            num_tokens: tokens that the target read, drafts included.
            num_drafts: draft tokens among them.
        """
        ended, self._ended = self._ended, []
        seen, self._seen = self._seen, []
        if self._planned or seen:
            self._observe(seen, num_rows, num_tokens, num_drafts)
        for request_id in ended:
            self.planner.evidence.free(request_id)

    def _observe(
        self, seen: Sequence[DraftFate], num_rows: int, num_tokens: int, num_drafts: int
    ) -> None:
        """Lets the planner learn from the step, and takes its reports."""
        step = self._step
        work = step.drafting.work
        drafting_s = sum(one.seconds for _, one in work)
        step.policy = self.planner.observe(
            StepOutcome(
                drafts=seen,
                work=work,
                rows=num_rows,
                tokens=num_tokens,
                context=self._context,
                emitted=self._emitted,
                verified=num_drafts > 0,
                # Without a plan nothing noted the rows' context, so the time means nothing.
                prefill=step.kind == StepKind.PREFILL or not self._planned,
                seconds=time.perf_counter() - self._step_start - drafting_s,
            )
        )
        now_s = time.monotonic()
        if now_s >= self._next_snapshot:
            self._next_snapshot = now_s + SNAPSHOT_INTERVAL_S
            step.evidence = self.planner.snapshot()

    def attach_stats(self, outputs: Iterable[Any]) -> None:
        """Sets the statistics of every row that streams them on vLLM's `EngineCoreOutput`."""
        for output in outputs:
            row = self._rows.get(output.request_id)
            if row is not None and row.streams_stats:
                output.kv_transfer_params = row.to_wire()

    def step_stats(self, grammars: CompiledGrammars = NO_GRAMMARS) -> dict[str, Any] | None:
        """The step's report; `None` before the first step."""
        if not self._step_start:
            return None
        self._step.grammars = grammars
        return self._step.to_wire(time.perf_counter() - self._step_start)


def draft_budget(request: Any, num_tokens: int, max_model_len: int) -> int:
    """How many draft tokens can still be emitted: this step and a bonus token take one each.

    Args:
        request: vLLM's `Request`, which has `num_tokens` so far.
        max_model_len: the longest request, in tokens.
    """
    left: int = min(request.max_tokens - request.num_output_tokens, max_model_len - num_tokens)
    return max(0, left - 2)
