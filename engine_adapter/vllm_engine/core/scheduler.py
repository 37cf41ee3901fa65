"""The scheduler: vLLM's, with the one place that plans who drafts for whom.

The plan of a step rides on its `SchedulerOutput` to every rank. What was verified is counted
where the scheduler sees it, so statistics leave with the outputs they belong to, and the sum
over proposers is vLLM's own count by construction.
"""

import time
from typing import Any

from engine_adapter.counts import StepKind
from engine_adapter.policies.contract import RowView, StepPlan, StepView
from engine_adapter.policies.fixed import FixedPolicy
from engine_adapter.types import NO_SWITCH, NONE, SpecMethod, Switch
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.core.counting import RowState, StepTally
from engine_adapter.vllm_engine.core.quarantine import Quarantine
from engine_adapter.vllm_engine.parent_watch import end_with_parent
from engine_adapter.vllm_engine.wire import DraftReport, SpecgateConfig, from_extra_args


class SpecgateScheduler(compat.Scheduler):
    """Plans drafts per row, counts per proposer, and switches between steps."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        end_with_parent()
        # vLLM pads a row that resumes, or hits the prefix cache but for one token, with k
        # placeholder drafts that nobody proposed, and counts them. A dynamic schedule turns
        # that off; a constant one changes nothing else.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)
        if SpecgateConfig.of(vllm_config).needs_draft_kv:
            # vLLM reserves slots for draft KV only if its own configuration is a draft model.
            self.num_lookahead_tokens = self.num_spec_tokens
            self._spec_decode_step_blocks = -(-(1 + 2 * self.num_spec_tokens) // self.block_size)
        self._policy = FixedPolicy()
        self._rows: dict[str, RowState] = {}
        self._drafting = 0
        self._quarantine = Quarantine()
        self._last_running_switch = NO_SWITCH
        self._step = StepTally()
        self._step_began = 0.0
        self._draft_report: DraftReport | None = None

    # -- plan ------------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's step, with `specgate_plan`, and with who is not to be asked attached."""
        self._step_began = time.perf_counter()
        output = super().schedule(*args, **kwargs)
        for request_id in output.scheduled_spec_decode_tokens:
            row = self._rows[request_id]
            row.verified_by = row.drafted_by
        output.specgate_plan = self._plan(output) if self._drafting else {}
        output.specgate_quarantined = self._quarantine.names
        return output

    def _plan(self, output: Any) -> StepPlan:
        views = []
        for request_id in output.num_scheduled_tokens:
            method = self._rows[request_id].spec_method
            if method.num_speculative_tokens and method.proposer not in self._quarantine.names:
                request = self.requests[request_id]
                room = 0 if request.is_prefill_chunk else self._room(request)
                if room or request.is_prefill_chunk:
                    views.append(RowView(request_id, method, room))
        plan = self._policy.plan(StepView(views))
        for request_id, method in plan.items():
            self._rows[request_id].drafted_by = method.proposer
        return plan

    def _room(self, request: Any) -> int:
        """The most drafts of which each could still be emitted, if this step emits one token."""
        after = request.num_tokens + 1
        left = request.max_tokens - request.num_output_tokens - 1
        return max(0, min(left, self.max_model_len - after) - 1)

    # -- requests --------------------------------------------------------------------------

    def add_request(self, request: Any) -> None:
        """Admits a request with the choice that came with it, unless a switch overtook it."""
        if request.request_id not in self._rows:
            asked = from_extra_args(request.sampling_params)
            method, last = asked.spec_method, self._last_running_switch
            if not asked.pinned and asked.switch_epoch < last.epoch:
                method = last.spec_method
            stops = bool(request.sampling_params.stop)
            self._rows[request.request_id] = RowState(method, asked.pinned, stops)
            self._drafting += method.num_speculative_tokens > 0
        super().add_request(request)

    def switch(self, switch: Switch) -> None:
        """Gives the switch's method to every request that is not pinned, also to those admitted
        before it that have not arrived yet.
        """
        self._last_running_switch = switch
        for row in self._rows.values():
            if not row.pinned:
                row.spec_method = switch.spec_method
        self._drafting = sum(
            row.spec_method.num_speculative_tokens > 0 for row in self._rows.values()
        )

    def pardon(self, proposer: str) -> None:
        """Forgets the faults of a proposer that is unloaded."""
        self._quarantine.pardon(proposer)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        _, ec_transfer_params = super()._free_request(request, *args, **kwargs)
        row = self._rows.pop(request.request_id, None)
        if row is None:
            return None, ec_transfer_params
        self._drafting -= row.spec_method.num_speculative_tokens > 0
        return row.to_wire(), ec_transfer_params

    # -- statistics ------------------------------------------------------------------------

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """vLLM's, with statistics on every output that may turn out to be a request's last."""
        self._step = StepTally(self._kind(scheduler_output))
        report = self._draft_report = getattr(model_runner_output, "specgate_report", None)
        if report is not None and report.faults:
            now = time.monotonic()
            self._step.quarantined = self._quarantine.note(report.faults, now)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for client in outputs.values():
            for output in client.outputs:
                row = self._rows.get(output.request_id)
                if row is not None and row.streams_stats:
                    output.kv_transfer_params = row.to_wire()
        return outputs

    def _kind(self, output: Any) -> StepKind:
        drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        fed = output.total_num_scheduled_tokens - drafts
        if output.scheduled_new_reqs or fed > len(output.num_scheduled_tokens):
            return StepKind.PREFILL
        return StepKind.VERIFY if drafts else StepKind.DECODE

    def make_spec_decoding_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Called once for each row whose drafts the step verified."""
        row = self._rows[kwargs["request_id"]]
        invalid = kwargs["num_invalid_spec_tokens"] or {}
        drafted = kwargs["num_draft_tokens"] - invalid.get(kwargs["request_id"], 0)
        accepted = kwargs["num_accepted_tokens"]
        row.tallies[row.verified_by].verified(drafted, accepted)
        self._step.tallies[row.verified_by].verified(drafted, accepted)
        return super().make_spec_decoding_stats(*args, **kwargs)

    def _update_request_with_output(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        emitted, stopped = super()._update_request_with_output(request, *args, **kwargs)
        row = self._rows[request.request_id]
        row.emitted(len(emitted))
        self._step.tallies[row.verified_by].emitted(len(emitted))
        row.verified_by = NONE
        return emitted, stopped

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's, carrying the step's report where a KV connector's would be."""
        stats = super().make_stats(*args, **kwargs)
        if stats is not None and self._step_began:
            seconds = time.perf_counter() - self._step_began
            stats.kv_connector_stats = self._step.to_wire(seconds, self._draft_report)
        return stats


def specgate_switch(core: Any, proposer: str, k: int, epoch: int) -> None:
    """The utility call behind `VllmEngine.switch`: runs between two steps."""
    core.scheduler.switch(Switch(SpecMethod(proposer, k), epoch))


def specgate_pardon(core: Any, proposer: str) -> None:
    """The utility call behind `VllmEngine.unload`: who is loaded anew begins anew."""
    core.scheduler.pardon(proposer)


compat.EngineCore.specgate_switch = specgate_switch
compat.EngineCore.specgate_pardon = specgate_pardon
