"""The model runner: vLLM's V2 runners with Specgate's hooks.

One step, in the order in which vLLM calls the hooks (`EngineCore.step`, then `post_step`):

    core    SpecgateScheduler.schedule              PLAN    proposer and k of each row
    worker  RunnerHooks.finish_requests             dispatch: ended requests, changed KV blocks
            RunnerHooks.update_requests             the mirrors of tokens and blocks
            (forward pass of the target: new tokens, and the drafts of the step before)
            RunnerHooks.sample_tokens               calls these:
                .sample                             VERIFY  ExactMatch.__call__
                PlannedSpeculator.propose           DRAFT   ProposerDispatch.propose
            RunnerHooks.take_draft_token_ids        the drafts of each row
    core    SpecgateScheduler.update_from_output    COUNT   per request and proposer
            (vLLM hands the drafts to the scheduler: the next step verifies them)

With one rank, core and worker are one process. docs/model-runner-v2.md says what differs when steps
are scheduled asynchronously.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.proposers.staging import HostCopy
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.module_names import patch_init_speculator, patch_sampler
from engine_adapter.vllm_engine.state_layers import fault_of
from engine_adapter.vllm_engine.worker.constraints import cut_mask
from engine_adapter.vllm_engine.worker.drafting.draft_noise import DraftNoise
from engine_adapter.vllm_engine.worker.drafting.row_options import RowOptions
from engine_adapter.vllm_engine.worker.drafting.tensor_parallel import is_only_rank
from engine_adapter.vllm_engine.worker.request_rows import RequestRows, RowTables
from engine_adapter.vllm_engine.worker.start_failure import fail_start, fail_start_on_block_size
from engine_adapter.vllm_engine.worker.step_drafts import (
    LateStepDrafts,
    StepDrafts,
    VerifiedStep,
)
from engine_adapter.vllm_engine.worker.verification.exact_match import ExactMatch
from engine_adapter.vllm_engine.worker.warm_up import WarmUpHooks


@dataclass(slots=True)
class StepState:
    """Values that one hook of a step leaves for another; vLLM has no argument for them.

    Attributes:
        scheduled: vLLM's `SchedulerOutput`, with the plan.
        emitted: int64 [R, width], the tokens of each row of the step, on the device.
    """

    scheduled: Any
    emitted: torch.Tensor | None = None


class RunnerHooks:
    """Mixed into a V2 runner of vLLM's.

    Attributes:
        drafter: the dispatch.
        input_batch: what dispatch reads of the live requests.
        requests: request id -> vLLM's `NewRequestData`, which has its sampling parameters, of those
            that have not ended.
        draft_noise: the noise with which drafts are sampled; once the target is loaded.
    """

    prompt_logprobs_worker: Any
    vocab_size: int
    _step: StepState

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        # They import vLLM's modules, which the gateway's process must not.
        from engine_adapter.vllm_engine.worker.dispatch import ProposerDispatch
        from engine_adapter.vllm_engine.worker.speculator import PlannedSpeculator

        self._capacity: int = vllm_config.num_speculative_tokens
        late = vllm_config.scheduler_config.async_scheduling
        has_ranks = not is_only_rank(vllm_config.parallel_config)
        step_drafts = LateStepDrafts if late else StepDrafts
        self._drafts = step_drafts(self, self._capacity, has_ranks=has_ranks)
        # A CPU has nothing to do meanwhile, and would run rejected drafts, too.
        self._drafts.drafts_early = late and device.type != "cpu"
        with patch_init_speculator(PlannedSpeculator(self, self._capacity)):
            super().__init__(vllm_config, device)  # type: ignore[call-arg]
        self.input_batch = RequestRows(self.req_states)
        self.requests: dict[str, Any] = {}
        self.drafter = ProposerDispatch(vllm_config)
        self.drafter.bind(self)

    # -- set-up ------------------------------------------------------------------------------

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Loads the target as vLLM does, then the proposers."""
        from engine_adapter.vllm_engine.worker.verification.rule_sampler import RuleSampler

        with patch_sampler(RuleSampler):
            super().load_model(*args, **kwargs)
        self.rejection_sampler = ExactMatch(self.sampler)
        self.draft_noise = DraftNoise(self.sampler)
        self.input_batch.bind_sampling(self.sampler.sampling_states)
        if self.lora_config is not None:
            self._follow_adapters()
        self.drafter.load_model(self.model)
        host = self.drafter.host
        if host.aux_reader is None:
            return
        self.use_aux_hidden_state_outputs = True
        # Not every class of vLLM's can output its layers.
        with host.fail_start_on_error(host.aux_reader):
            compat.set_eagle3_aux_hidden_state_layers(self.model, _reading(host.aux_layers))

    def _follow_adapters(self) -> None:
        """Maps LoRA adapters to every row of logits: see `adapters`."""
        from engine_adapter.vllm_engine.worker.adapters import PromptAdapters, RowAdapters

        self.lora_state = RowAdapters(self.max_num_reqs)
        self.prompt_logprobs_worker = PromptAdapters(
            self.prompt_logprobs_worker, self.lora_state, self._set_active_loras
        )

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """vLLM's, with blocks for every position in the layers of draft models.

        Ends the start if the target has a layer whose state does not follow rejected drafts. The
        gateway does not know the layers of a model whose class wraps another one by name.
        """
        specs: dict[str, Any] = super().get_kv_cache_spec()
        host, layers = self.drafter.host, self.compilation_config.static_forward_context
        specs = specs | host.kept_specs(specs)
        state_layers = [name for name, spec in specs.items() if isinstance(spec, compat.MambaSpec)]
        if fault := fault_of(type(layers[name]) for name in state_layers):
            fail_start("model", fault, host.progress)
        return specs

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        """Initializes as vLLM does, then shows the KV cache to draft models."""
        size = self.vllm_config.cache_config.block_size
        with fail_start_on_block_size(size, self.drafter.host.progress):
            super().initialize_kv_cache(*args, **kwargs)
        self._check_blocks()
        self.drafter.host.take_layers(self.attn_groups)
        self.drafter.bind_kv_cache(self.kv_cache_config, self.kernel_block_sizes)
        self.input_batch.block_table = RowTables(self.block_tables)

    def _check_blocks(self) -> None:
        """Ends the start if attention has blocks of another size than a draft model's tables."""
        groups = self.kv_cache_config.kv_cache_groups
        sizes = [group.kv_cache_spec.block_size for group in groups]
        host = self.drafter.host
        if host.draft_models and list(self.kernel_block_sizes) != sizes:
            reason = (
                f"{sizes} is {self.kernel_block_sizes} for this machine's attention, which draft "
            )
            reason += "models and heads cannot follow; choose another size"
            fail_start("block_size", reason, host.progress)

    # -- following the requests --------------------------------------------------------------

    def finish_requests(self, scheduler_output: Any) -> None:
        """The first call of a step."""
        self._step = StepState(scheduler_output)
        if self.lora_config is not None:
            self.lora_state.drafts = scheduler_output.scheduled_spec_decode_tokens
        self.drafter.observe(scheduler_output)
        super().finish_requests(scheduler_output)
        for request_id in scheduler_output.finished_req_ids:
            self.requests.pop(request_id, None)

    def update_requests(self, scheduler_output: Any) -> None:
        """Updates running requests as vLLM does; mirrors their blocks, and what vLLM has added."""
        super().update_requests(scheduler_output)
        added = scheduler_output.scheduled_new_reqs  # resumed ones are among them
        if added or scheduler_output.finished_req_ids:
            self.sampler.requests_changed()
        self.requests |= {request.req_id: request for request in added}
        self.input_batch.add(added)
        self.input_batch.add_blocks(scheduler_output.scheduled_cached_reqs)

    # -- verify and draft --------------------------------------------------------------------

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the target as vLLM does; drafts that are made late are made first."""
        if not kwargs.get("dummy_run"):
            scheduler_output = self._drafts.begin_step(scheduler_output)
        return super().execute_model(scheduler_output, *args, **kwargs)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Verifies and drafts; vLLM's output with the `DraftReport` of the newest drafting."""
        output = super().sample_tokens(grammar_output)
        if output is not None:
            if report := self._drafts.report:
                output.model_runner_output.specgate_report = report
            if self.device.type == "cpu":  # nothing runs there after the call
                output.model_runner_output.specgate_ready_s = time.perf_counter()
        return output

    def sample(self, hidden_states: torch.Tensor, input_batch: Any, grammar_output: Any) -> Any:
        """Samples and verifies as vLLM does, with `ExactMatch` and the rule of sampled drafts."""
        self.sampler.drafts = self.drafter.sampled_drafts.pop_for_verification(input_batch)
        if grammar_output is not None:
            grammar_output.grammar_bitmask = cut_mask(
                grammar_output.grammar_bitmask, self.vocab_size
            )
        sampled = super().sample(hidden_states, input_batch, grammar_output)
        self._step.emitted = sampled[0].sampled_token_ids
        return sampled

    def draft(
        self,
        input_batch: Any,
        slots: Mapping[str, torch.Tensor],
        hidden: torch.Tensor,
        auxiliary: Sequence[torch.Tensor] | None,
        counts: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """The drafts of a step, which `take_draft_token_ids` gives to the scheduler.

        Args:
            input_batch: vLLM's `InputBatch`, of R rows.
            slots: layer of the KV cache -> int64 [T or more], the slots of the T tokens read.
            hidden: [T or more, H], the target's final hidden states.
            auxiliary: the outputs of `host.aux_layers`, each of that shape.
            counts: how many tokens each row has emitted, and how many of its drafts were
                rejected; both int32 [R].

        Returns:
            int64 [R, capacity]; any valid token where a row has no draft.
        """
        if self.drafter.host.heads:
            total = input_batch.num_tokens
            aux = [states[:total] for states in auxiliary or ()]
            self.drafter.store_states(slots, hidden[:total], aux)
        step = self._step
        assert step.emitted is not None
        emitted, (num_sampled, num_rejected) = step.emitted, counts
        copies = HostCopy(emitted, num_sampled)
        return self._drafts.draft_after(
            VerifiedStep(step.scheduled, input_batch, copies, hidden, emitted, num_rejected)
        )

    def row_options(self, batch: DraftBatch, *, samples: bool) -> RowOptions:
        """The options of rows at their next drafts; `samples`: a row samples its drafts."""
        return RowOptions(self.sampler, batch.rows, batch.num_tokens, samples=samples)

    def take_draft_token_ids(self) -> Any:
        """The drafts that the next step verifies, or under asynchronous scheduling this one."""
        return self._drafts.take_draft_token_ids()


def _reading(layers: Sequence[int]) -> Any:
    """A configuration from which vLLM reads that a head needs these layers of the target."""
    head = SimpleNamespace(eagle_aux_hidden_state_layer_ids=list(layers))
    return SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=head))


def cpu_runner() -> type:
    """The runner class for CPU; created here so that no process imports the other device's."""

    class SpecgateCPUModelRunner(WarmUpHooks, RunnerHooks, compat.CPUModelRunner):
        """vLLM's CPU runner with Specgate's hooks."""

    return SpecgateCPUModelRunner


def gpu_runner() -> type:
    """The runner class for GPU."""

    class SpecgateGPUModelRunner(WarmUpHooks, RunnerHooks, compat.GPUModelRunner):
        """vLLM's GPU runner with Specgate's hooks."""

    return SpecgateGPUModelRunner
