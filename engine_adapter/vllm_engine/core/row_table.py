"""The live requests as rows of a table: what drafts for each, and what was counted. No vLLM.

One step, in the order of the calls: `start_step`, `plan`, then, when the step's outputs arrive,
`start_count`, `count_verified` and `count_emitted` for each row, `attach_stats`, `step_stats`.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from engine_adapter.counts import StepKind
from engine_adapter.policies.contract import Policy, RowView, StepPlan, StepView
from engine_adapter.types import NO_SWITCH, NONE, SpecDecodeParams, Switch
from engine_adapter.vllm_engine.core.counting import RowState, StepTally
from engine_adapter.vllm_engine.core.quarantine import Quarantine
from engine_adapter.vllm_engine.wire import DraftReport


class RowTable:
    """One `RowState` for each live request, and the counts of the current step.

    Args:
        policy: plans every step.
        max_model_len: the longest request, in tokens.

    Attributes:
        quarantine: the proposers that fail repeatedly.
        num_drafting: rows whose method drafts; without any, no step is planned.
    """

    def __init__(self, policy: Policy, max_model_len: int) -> None:
        self.policy = policy
        self.quarantine = Quarantine()
        self._max_model_len = max_model_len
        self._rows: dict[str, RowState] = {}
        self.num_drafting = 0
        self._last_running_switch = NO_SWITCH
        self._step = StepTally()
        self._step_start = 0.0

    # -- requests --------------------------------------------------------------------------

    def admit(self, request_id: str, params: SpecDecodeParams, streams_stats: bool) -> None:
        """Adds a row, with its own method or with that of a switch that overtook the request.

        A request that already has a row keeps it: vLLM adds the next input of a streaming session
        under the same id.

        Args:
            streams_stats: see `RowState`.
        """
        if request_id in self._rows:
            return
        method, last = params.spec_method, self._last_running_switch
        if not params.pinned and params.switch_epoch < last.epoch:
            method = last.spec_method
        self._rows[request_id] = RowState(method, params.pinned, streams_stats)
        self.num_drafting += method.num_speculative_tokens > 0

    def free(self, request_id: str) -> dict[str, Any] | None:
        """Removes a row and returns its statistics; `None` for a request without a row."""
        row = self._rows.pop(request_id, None)
        if row is None:
            return None
        self.num_drafting -= row.spec_method.num_speculative_tokens > 0
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
        self, scheduled: Iterable[str], verified: Iterable[str], requests: Mapping[str, Any]
    ) -> StepPlan:
        """The proposer and k of each row that is drafted for, or read in the middle of its prompt.

        Args:
            scheduled: ids of the step's requests.
            verified: ids of those whose drafts the step verifies.
            requests: id -> vLLM's `Request`; see `draft_budget`.
        """
        rows, max_model_len = self._rows, self._max_model_len
        for request_id in verified:
            row = rows[request_id]
            row.verified_by = row.drafted_by
        if not self.num_drafting:
            return {}
        quarantined = self.quarantine.names
        views = []
        for request_id in scheduled:
            method = rows[request_id].spec_method
            if method.num_speculative_tokens and method.proposer not in quarantined:
                request = requests[request_id]
                in_prompt = request.is_prefill_chunk
                budget = 0 if in_prompt else draft_budget(request, max_model_len)
                if budget or in_prompt:
                    views.append(RowView(request_id, method, budget))
        plan = self.policy.plan(StepView(views))
        for request_id, method in plan.items():
            rows[request_id].drafted_by = method.proposer
        return plan

    # -- count -----------------------------------------------------------------------------

    def start_count(self, kind: StepKind, drafting: DraftReport | None) -> None:
        """Starts the counts of a step whose outputs arrived, and records its faults.

        Args:
            drafting: the runner's report, `None` if it did not draft.
        """
        self._step = StepTally(kind, drafting or DraftReport())
        if drafting is not None and drafting.faults:
            now_s = time.monotonic()
            self._step.quarantined = self.quarantine.record_faults(drafting.faults, now_s)

    def count_verified(self, request_id: str, drafted: int, accepted: int) -> None:
        """Counts a row's verified drafts for the proposer that drafted them."""
        row = self._rows[request_id]
        row.tallies[row.verified_by].add_verified(drafted, accepted)
        self._step.tallies[row.verified_by].add_verified(drafted, accepted)

    def count_emitted(self, request_id: str, tokens: int) -> None:
        """Counts a row's emitted tokens; the last call of a step for the row."""
        row = self._rows[request_id]
        row.add_emitted(tokens)
        self._step.tallies[row.verified_by].add_emitted(tokens)
        row.verified_by = NONE

    def attach_stats(self, outputs: Iterable[Any]) -> None:
        """Sets the statistics of every row that streams them on vLLM's `EngineCoreOutput`."""
        for output in outputs:
            row = self._rows.get(output.request_id)
            if row is not None and row.streams_stats:
                output.kv_transfer_params = row.to_wire()

    def step_stats(self) -> dict[str, Any] | None:
        """The step's report; `None` before the first step."""
        if not self._step_start:
            return None
        return self._step.to_wire(time.perf_counter() - self._step_start)


def draft_budget(request: Any, max_model_len: int) -> int:
    """How many draft tokens can still be emitted: this step and a bonus token take one each.

    Args:
        request: vLLM's `Request`; `num_tokens`, `num_output_tokens` and `max_tokens` are read.
        max_model_len: the longest request, in tokens.
    """
    tokens_left = request.max_tokens - request.num_output_tokens - 1
    context_left = max_model_len - request.num_tokens - 1
    return max(0, min(tokens_left, context_left) - 1)
