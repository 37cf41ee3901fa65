"""The model runner: vLLM's V1 runners with Specgate's hooks.

One step, in the order in which vLLM calls the hooks (`EngineCore.step`, then `post_step`):

    core    SpecgateScheduler.schedule              PLAN    proposer and k of each row
    worker  RunnerHooks._update_states              dispatch: ended requests, changed KV blocks
            RunnerHooks._calc_spec_decode_metadata  plain decoding if there are no drafts
            (forward pass of the target: new tokens, and the drafts of the step before)
            RunnerHooks.sample_tokens               calls these:
                ._sample                            VERIFY  Verifier.__call__
                ._input_fits_in_drafter             yes, since the plan decides for each row
                ._bookkeeping_sync                  the tokens are on the CPU, in the batch
                .propose_draft_token_ids            DRAFT   ProposerDispatch.propose
                ._copy_draft_token_ids_to_cpu
    core    SpecgateScheduler.update_from_output    COUNT   per request and proposer
            (vLLM hands the drafts to the scheduler: the next step verifies them)

With one rank, core and worker are one process.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.log_filters import silence_min_p_warning
from engine_adapter.vllm_engine.wire import DraftReport
from engine_adapter.vllm_engine.worker.drafting.draft_noise import GeneratorNoise
from engine_adapter.vllm_engine.worker.drafting.row_options import MetadataOptions
from engine_adapter.vllm_engine.worker.recurrent import RecurrentStateHooks
from engine_adapter.vllm_engine.worker.refusal import refusing_block_size
from engine_adapter.vllm_engine.worker.target import TargetStep
from engine_adapter.vllm_engine.worker.verification import logits_processors, seeding
from engine_adapter.vllm_engine.worker.verification.verifier import Verifier, VerifyInputs
from engine_adapter.vllm_engine.worker.warm_up import WarmUpHooks


@dataclass(slots=True)
class StepState:
    """Values that one hook of a step leaves for another; vLLM has no argument for them.

    Attributes:
        verify_inputs: from `_sample`, through `_get_spec_decode_draft_probs`, to the verifier.
        draft_report: from `propose_draft_token_ids` to the end of `sample_tokens`; `None` if
            nothing was planned.
    """

    verify_inputs: VerifyInputs | None = None
    draft_report: DraftReport | None = None


class RunnerHooks:
    """Mixed into a V1 runner whose drafter is a `ProposerDispatch`.

    Attributes:
        draft_noise: the noise with which drafts are sampled.
    """

    num_prompt_logprobs: dict[str, int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        silence_min_p_warning()
        super().__init__(*args, **kwargs)
        self.input_batch.logitsprocs = logits_processors.build(self.vllm_config, self.device)
        self.drafter.bind(self)
        self.rejection_sampler = Verifier(self.sampler)
        self.draft_noise = GeneratorNoise(self.sampler)
        self._step = StepState()
        self._generators = seeding.GeneratorPool(self.device)

    # -- set-up ------------------------------------------------------------------------------

    def _setup_eagle3_aux_hidden_state_outputs(self) -> None:
        # Called when target and drafters are loaded.
        host = self.drafter.host
        self.use_aux_hidden_state_outputs = bool(host.aux_layers)
        # Not every class of vLLM's can output its layers.
        with host.refusing(host.aux_reader) if host.aux_reader else nullcontext():
            super()._setup_eagle3_aux_hidden_state_outputs()

    def _get_eagle3_aux_layers_from_config(self) -> tuple[int, ...]:
        layers: tuple[int, ...] = self.drafter.host.aux_layers
        return layers

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """vLLM's, with blocks for every position in the layers of draft models."""
        specs: dict[str, Any] = super().get_kv_cache_spec()
        return specs | self.drafter.host.kept_specs(specs)

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        """Initializes as vLLM does, then leaves only the target's layers in its own groups."""
        size = self.vllm_config.cache_config.block_size
        with refusing_block_size(size, self.drafter.host.progress):
            super().initialize_kv_cache(*args, **kwargs)
        self.drafter.host.take_layers(self.attn_groups)

    def _check_and_update_cudagraph_mode(
        self, attention_backends: list[set[Any]], *args: Any, **kwargs: Any
    ) -> None:
        # A layer without attention must not restrict the graphs of the target's steps.
        attending = [
            backends - {compat.CacheOnlyAttentionBackend} for backends in attention_backends
        ]
        super()._check_and_update_cudagraph_mode(attending, *args, **kwargs)
        mode = self.compilation_config.cudagraph_mode or compat.CUDAGraphMode.NONE
        for model in self.drafter.host.draft_models.values():
            model.set_cudagraph_mode(mode)

    def initialize_metadata_builders(
        self, kv_cache_config: Any, kernel_block_sizes: list[int]
    ) -> None:
        """Creates vLLM's builders, and those of every draft model's layers."""
        super().initialize_metadata_builders(kv_cache_config, kernel_block_sizes)
        self.drafter.bind_kv_cache(kv_cache_config, kernel_block_sizes)

    # -- forward -----------------------------------------------------------------------------

    def _update_states(self, scheduler_output: Any) -> Any:
        self.drafter.observe(scheduler_output)
        return super()._update_states(scheduler_output)

    def _calc_spec_decode_metadata(
        self, num_draft_tokens: Any, cu_num_scheduled_tokens: Any
    ) -> Any:
        # vLLM builds its metadata in every step of an engine that speculates. In a step without
        # drafts only the logits indices are needed: the last token of each row.
        if num_draft_tokens.any():
            return super()._calc_spec_decode_metadata(num_draft_tokens, cu_num_scheduled_tokens)
        rows = len(num_draft_tokens)
        return SimpleNamespace(
            num_draft_tokens=[0] * rows,
            draft_token_ids=self.input_ids.gpu[:0],
            logits_indices=self.query_start_loc.gpu[1 : rows + 1] - 1,
        )

    # -- verify ------------------------------------------------------------------------------

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Verifies and drafts; vLLM's output with the step's `DraftReport` attached."""
        self._step = StepState()
        output = super().sample_tokens(grammar_output)
        if report := self._step.draft_report:
            output.specgate_report = report
        return output

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        counts = spec_decode_metadata and spec_decode_metadata.num_draft_tokens
        batch, store = self.input_batch, self.drafter.sampled_drafts
        drafts = store.pop_for_verification(batch.req_ids, batch.num_tokens_no_spec, counts)
        if not (drafts or (counts and any(counts))):
            spec_decode_metadata = None
        generators = self._seed_generators(spec_decode_metadata)
        self._step.verify_inputs = VerifyInputs(drafts, generators)
        return super()._sample(logits, spec_decode_metadata)

    def _seed_generators(self, metadata: Any) -> dict[int, torch.Generator]:
        """Seeds a generator for every position that the step samples in rows with a seed."""
        batch = self.input_batch
        if not batch.generators:
            return {}
        rows = np.array(list(batch.generators))
        seeds = [self.requests[batch.req_ids[row]].sampling_params.seed for row in rows]
        tokens = batch.num_tokens_no_spec[rows].astype(np.int64)
        # vLLM samples with the rows' own generators in a step without drafts.
        firsts = zip(batch.generators.values(), seeding.position_seeds(seeds, tokens), strict=True)
        for generator, seed in firsts:
            generator.manual_seed(int(seed))
        if metadata is None:
            return dict(batch.generators)
        counts = np.array(metadata.num_draft_tokens, np.int64)
        return self._generators.seeded_rows(rows, seeds, tokens, counts)

    def _get_spec_decode_draft_probs(self, spec_decode_metadata: Any) -> VerifyInputs | None:
        """The second argument of the verifier; in vLLM, one tensor for all rows."""
        return self._step.verify_inputs

    def _get_prompt_logprobs_dict(
        self, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
    ) -> dict[str, Any]:
        """vLLM's, prompt by prompt, so that each gets its own adapter's log probabilities.

        vLLM leaves the adapters as the sampler needs them, one row for each token that the batch
        samples. A prompt has other rows: on CPU the step fails, elsewhere they get the adapters of
        other requests.
        """
        wanted = self.num_prompt_logprobs
        if not wanted or self.lora_config is None:
            return super()._get_prompt_logprobs_dict(hidden_states, num_scheduled_tokens)
        found: dict[str, Any] = {}
        for req_id in list(wanted):
            self._select_prompt_adapter(req_id, num_scheduled_tokens)
            self.num_prompt_logprobs = {req_id: wanted[req_id]}
            found |= super()._get_prompt_logprobs_dict(hidden_states, num_scheduled_tokens)
            if not self.num_prompt_logprobs:
                del wanted[req_id]
        self.num_prompt_logprobs = wanted
        return found

    def _select_prompt_adapter(self, req_id: str, num_scheduled_tokens: dict[str, int]) -> None:
        """Gives the rows of a prompt's logits in this step the adapter of its request."""
        request = self.requests[req_id]
        prompt_left = len(request.prompt_token_ids or ()) - 1 - request.num_computed_tokens
        rows = min(num_scheduled_tokens.get(req_id, 0), prompt_left)
        if rows <= 0:
            return
        batch = self.input_batch
        scheduled = np.array([num_scheduled_tokens[one] for one in batch.req_ids])
        _, tokens, adapters = batch.make_lora_inputs(scheduled, scheduled)
        own = int(batch.request_lora_mapping[batch.req_id_to_index[req_id]])
        self._set_active_loras((own,) * rows, tokens, adapters)

    # -- draft -------------------------------------------------------------------------------

    def row_options(self, batch: DraftBatch, *, samples: bool) -> MetadataOptions:
        """The options of rows at their next drafts; `samples`: a row samples its drafts."""
        metadata, count = self.input_batch.sampling_metadata, len(self.input_batch.req_ids)
        return MetadataOptions(self.sampler, metadata, batch.rows, count, samples=samples)

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        """True after a forward pass. vLLM decides for the batch; the plan decides for each row."""
        return common_attn_metadata is not None

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        # A row in the middle of its prompt samples a token that is thrown away. vLLM then winds
        # the row's generator back by an offset, which CPU generators do not have. Each step seeds
        # every generator, so this is not needed: those of such rows are hidden from vLLM.
        generators = self.input_batch.generators
        if not generators:
            return super()._bookkeeping_sync(*args, **kwargs)
        discarded = self.discard_request_mask.np[: self.input_batch.num_reqs]
        hidden = {row: generators.pop(row) for row in list(generators) if discarded[row]}
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            generators.update(hidden)

    def propose_draft_token_ids(
        self,
        scheduler_output: Any,
        sampled_token_ids: list[list[int]],
        sampling_metadata: Any,
        hidden_states: torch.Tensor,
        sample_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
    ) -> list[list[int]]:
        """The drafts of each row of the batch, `[]` for a row without, or `[]` for all."""
        total = scheduler_output.total_num_scheduled_tokens
        self.drafter.store_states(
            slot_mappings,
            hidden_states[:total],
            [states[:total] for states in aux_hidden_states or ()],
        )
        plan = scheduler_output.specgate_plan
        if not plan:
            return []
        verified = spec_decode_metadata and spec_decode_metadata.num_draft_tokens
        step = TargetStep(
            scheduled=scheduler_output.num_scheduled_tokens,
            sampled=sampled_token_ids,
            first_samples=TargetStep.first_of(verified or [0] * len(sampled_token_ids)),
            sample_hidden=sample_hidden_states,
        )
        drafts, self._step.draft_report = self.drafter.propose(plan, step)
        return drafts

    def _copy_draft_token_ids_to_cpu(self, *args: Any, **kwargs: Any) -> None:
        # Skipped in a step without drafts, so that vLLM sends none to the scheduler.
        if any(self._draft_token_ids):
            super()._copy_draft_token_ids_to_cpu(*args, **kwargs)


def cpu_runner() -> type:
    """The runner class for CPU; created here so that no process imports the other device's."""

    class SpecgateCPUModelRunner(
        RecurrentStateHooks, RunnerHooks, WarmUpHooks, compat.CPUModelRunner
    ):
        """vLLM's CPU runner with Specgate's hooks."""

    return SpecgateCPUModelRunner


def gpu_runner() -> type:
    """The runner class for GPU."""

    class SpecgateGPUModelRunner(
        RecurrentStateHooks, RunnerHooks, WarmUpHooks, compat.GPUModelRunner
    ):
        """vLLM's V1 GPU runner with Specgate's hooks."""

    return SpecgateGPUModelRunner
