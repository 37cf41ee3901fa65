"""vLLM's scheduler with Specgate's hooks; `RowTable` does the work.

The plan of a step rides on its `SchedulerOutput` to every rank. The counts are taken where vLLM
takes its own, so that their sum over all proposers is vLLM's count.
"""

import atexit
import multiprocessing
from collections.abc import Iterable
from typing import Any

from engine_adapter.policies.contract import RequestClass
from engine_adapter.policies.planner import Planner
from engine_adapter.seam.counts import StepKind
from engine_adapter.seam.process_end import skip_last_collection
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.compiled_grammars import process_store
from engine_adapter.vllm_engine.core.constrained import (
    GrammarCompiler,
    constraint_starts,
    count_draft_times,
    failure_of,
    forget_constraint,
    slow_constraints,
)
from engine_adapter.vllm_engine.core.counting import StepSize
from engine_adapter.vllm_engine.core.row_table import RowTable
from engine_adapter.vllm_engine.core.slow_rows import SlowRows
from engine_adapter.vllm_engine.parent_watch import exit_with_parent
from engine_adapter.vllm_engine.patches.engine_core import patch_engine_core
from engine_adapter.vllm_engine.patches.fatal_dump import patch_fatal_dump
from engine_adapter.vllm_engine.patches.grammars import patch_grammar_compiler
from engine_adapter.vllm_engine.patches.log_filters import silence_rejected_tokens
from engine_adapter.vllm_engine.patches.triton_check import patch_triton_check
from engine_adapter.vllm_engine.wire import FAILURE, SpecgateConfig, from_extra_args, without_kv


class SchedulerHooks:
    """Mixed into vLLM's scheduler: one method for each of vLLM's that Specgate overrides.

    Attributes:
        drafts_late: the drafts of a plan are made after the next step is scheduled.
        row_table: the live requests.
    """

    drafts_late = False
    row_table: RowTable
    max_num_scheduled_tokens: int
    _budget: int
    _budget_of_one: int
    _failures: dict[str, str]
    _slow_rows: SlowRows

    def add_request(self, request: Any) -> None:
        """Gives the request a row with its spec method."""
        params = request.sampling_params
        spec = from_extra_args(params)
        # vLLM's front end finds stop strings: any output may be the last that it reads.
        streams_stats = bool(params.stop) or spec.streams_stats
        self.row_table.admit(request.request_id, spec, streams_stats, request_class(params))
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedules as vLLM does, then attaches the draft plan and what drafting needs to know.

        The rows that `SlowRows` sets aside are left out. A long prompt is read in parts while its
        request is alone, too: vLLM would read it whole, and a request that arrives in that step
        would wait for all of it.
        """
        self._slow_rows.set_aside(
            self.running, others_wait=bool(self.waiting), drops_drafts=not self.drafts_late
        )
        is_alone = sum(self.get_request_counts()) <= 1
        self.max_num_scheduled_tokens = self._budget_of_one if is_alone else self._budget
        self.row_table.start_step()
        output = super().schedule(*args, **kwargs)
        self._plan(output)
        return output

    def _plan(self, output: Any) -> None:
        """Attaches the plan to vLLM's `SchedulerOutput`."""
        is_constrained = output.has_structured_output_requests
        requests = map(self.requests.__getitem__, output.num_scheduled_tokens)
        output.specgate_plan = self.row_table.plan(
            output.num_scheduled_tokens,
            output.scheduled_spec_decode_tokens,
            self.requests,
            len(self.waiting),
            without_kv(output) & self.requests.keys(),
            slow_constraints(requests) if is_constrained else (),
        )
        output.specgate_quarantined = self.row_table.quarantine.names
        output.specgate_constraints = {}
        if output.specgate_plan and is_constrained:
            output.specgate_constraints = constraint_starts(
                self.structured_output_manager,
                map(self.requests.__getitem__, output.num_scheduled_tokens),
            )

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Counts the step. Its report leaves in the field for a KV connector's statistics."""
        table, drafting = self.row_table, getattr(model_runner_output, "specgate_report", None)
        table.start_count(drafting)
        size = step_size(scheduler_output, self._count_drafts(scheduler_output))
        if drafting is not None:
            count_draft_times(self.requests, drafting.constraint_times)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for client in outputs.values():
            table.count_outputs(client.outputs)
            self._attach_failures(client.outputs)
        self._failures.clear()
        table.end_count(size, getattr(model_runner_output, "specgate_ready_s", None))
        for client in outputs.values():
            if (stats := client.scheduler_stats) is not None:  # one client's, if vLLM makes any
                stats.kv_connector_stats = table.step_stats(process_store().usage)
        return outputs

    def _count_drafts(self, scheduler_output: Any) -> int:
        """The drafts that a step has verified."""
        return sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values()))

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> Any:
        """Called for each row whose drafts the step verified."""
        invalid = num_invalid_spec_tokens.get(request_id, 0) if num_invalid_spec_tokens else 0
        if num_draft_tokens == invalid:
            return spec_decoding_stats  # no place had a draft
        self.row_table.count_verified(request_id, num_draft_tokens - invalid, num_accepted_tokens)
        return super().make_spec_decoding_stats(
            spec_decoding_stats,
            num_draft_tokens,
            num_accepted_tokens,
            num_invalid_spec_tokens,
            request_id,
        )

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if (failure := failure_of(request)) is not None:
            self._failures[request.request_id] = failure
            forget_constraint(request)
        self.row_table.free(request.request_id)
        return super()._free_request(request, *args, **kwargs)

    def _attach_failures(self, outputs: Iterable[Any]) -> None:
        """Tells the gateway why constraints have ended their requests."""
        for output in outputs if self._failures else ():
            if (failure := self._failures.get(output.request_id)) is not None:
                output.kv_transfer_params = {**(output.kv_transfer_params or {}), FAILURE: failure}
                if getattr(output, "error", None) is not None:
                    # With it, vLLM 0.33 raises a text of its own in the gateway, and no output
                    # brings the failure there.
                    output.error = None


class SpecgateScheduler(SchedulerHooks, compat.Scheduler):
    """The scheduler class for vLLM's `scheduler_cls`."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        exit_with_parent()
        if multiprocessing.parent_process() is not None:
            atexit.register(skip_last_collection)
        patch_engine_core()
        patch_triton_check()
        patch_fatal_dump()
        config = SpecgateConfig.from_vllm_config(vllm_config)
        process_store().budget = config.max_grammar_bytes
        patch_grammar_compiler(GrammarCompiler(process_store()))
        silence_rejected_tokens()
        # vLLM pads a row that resumes, or whose prompt but one token is in the prefix cache, with
        # k placeholder drafts, and counts them. A dynamic schedule of k turns that off; a constant
        # one changes nothing else.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)
        if config.needs_draft_kv:
            # vLLM reserves slots for draft KV only if its own configuration is a draft model.
            self.num_lookahead_tokens = lookahead(self.num_spec_tokens)
            reserved = 1 + self.num_spec_tokens + self.num_lookahead_tokens
            self._spec_decode_step_blocks = -(-reserved // self.block_size)
        planner = Planner(config.traits, self.num_spec_tokens, config.policies, config.primary)
        self.row_table = RowTable(planner, self.max_model_len, self.drafts_late)
        self._failures = {}
        self._slow_rows = SlowRows()
        self._budget = self.max_num_scheduled_tokens
        self._budget_of_one = budget_of_one(
            self.scheduler_config, self._budget, 1 + self.num_spec_tokens
        )


class SpecgateAsyncScheduler(SpecgateScheduler, compat.AsyncScheduler):
    """The scheduler class for asynchronous scheduling.

    A step is scheduled before the drafts that it verifies are made. Each row has as many places as
    its plan may draft. The runner leaves out places without a draft, and reports the others.
    """

    drafts_late = True

    def _plan(self, output: Any) -> None:
        super()._plan(output)
        for request_id in output.num_scheduled_tokens:
            request = self.requests[request_id]
            if not request.is_prefill_chunk:
                request.spec_token_ids = [-1] * self.row_table.draft_places(request_id)

    def _count_drafts(self, scheduler_output: Any) -> int:
        """The drafts that a step has verified; tells vLLM which of the places had none."""
        places = scheduler_output.scheduled_spec_decode_tokens
        invalid = dict(scheduler_output.num_invalid_spec_tokens or {})
        for request_id, tokens in places.items():
            empty = len(tokens) - self.row_table.num_drafted(request_id)
            invalid[request_id] = max(invalid.get(request_id, 0), empty)
        scheduler_output.num_invalid_spec_tokens = invalid
        return sum(len(tokens) - invalid[request_id] for request_id, tokens in places.items())


def budget_of_one(config: Any, budget: int, min_row_tokens: int) -> int:
    """The most tokens of a step that has one request: twice `long_prefill_token_threshold`.

    Where prompts are not read in parts, a smaller budget would never let a long one in.

    Args:
        config: vLLM's `SchedulerConfig`.
        budget: the most tokens of any step.
        min_row_tokens: the most tokens of a row that verifies drafts.
    """
    threshold: int = config.long_prefill_token_threshold
    adapts: bool = config.long_prefill_token_threshold_adaptive
    if not threshold or adapts or not config.enable_chunked_prefill:
        return budget
    # A request that arrives in a step waits for half of it on average: it may be twice as long.
    return min(budget, max(2 * threshold, min_row_tokens))


def lookahead(num_spec_tokens: int) -> int:
    """KV slots that a step reserves past the tokens that the target reads.

    A draft model writes the KV of the tokens before its last draft. A block head also has a mask
    for the last one, so it needs one slot more.
    """
    return num_spec_tokens + 1


def request_class(params: Any) -> RequestClass:
    """Which measurements are valid for a request, from vLLM's `SamplingParams`."""
    if params.structured_outputs is not None:
        return RequestClass.STRUCTURED
    return RequestClass.SAMPLED if params.temperature > 0 else RequestClass.GREEDY


def step_size(scheduler_output: Any, num_drafts: int) -> StepSize:
    """The work of a step, from vLLM's `SchedulerOutput`.

    Args:
        num_drafts: the drafts that it has verified.
    """
    rows = len(scheduler_output.num_scheduled_tokens)
    places = sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values()))
    tokens = scheduler_output.total_num_scheduled_tokens - places
    kind = StepKind.VERIFY if num_drafts else StepKind.DECODE
    if scheduler_output.scheduled_new_reqs or tokens > rows:
        kind = StepKind.PREFILL
    return StepSize(kind, rows, tokens + num_drafts, num_drafts)
