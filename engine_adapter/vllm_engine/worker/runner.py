"""The model runner: vLLM's V1 runners with hooks only; what happens in them is elsewhere."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.log_filters import silence_min_p_warning
from engine_adapter.vllm_engine.worker.step import TargetStep
from engine_adapter.vllm_engine.worker.verification import logits_processors
from engine_adapter.vllm_engine.worker.verification.layout import noise_key
from engine_adapter.vllm_engine.worker.verification.rejection import SampledDraft
from engine_adapter.vllm_engine.worker.verification.verifier import Verifier


class RunnerHooks:
    """Mixed into a V1 runner whose drafter is a `ProposerDispatch`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        silence_min_p_warning()
        super().__init__(*args, **kwargs)
        self.input_batch.logitsprocs = logits_processors.build(self.vllm_config, self.device)
        self.drafter.bind(self)
        self.rejection_sampler = Verifier(self.sampler)

    def _setup_eagle3_aux_hidden_state_outputs(self) -> None:
        # Called when target and drafters are loaded.
        self.use_aux_hidden_state_outputs = bool(self.drafter.aux_layers)
        super()._setup_eagle3_aux_hidden_state_outputs()

    def _get_eagle3_aux_layers_from_config(self) -> tuple[int, ...]:
        layers: tuple[int, ...] = self.drafter.aux_layers
        return layers

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        """vLLM's; after it the target's steps know of the target's layers alone."""
        super().initialize_kv_cache(*args, **kwargs)
        # Drafts build metadata for their own layers when they run.
        theirs = {n for model in self.drafter.draft_models.values() for n in model.layer_names}
        for groups in self.attn_groups:
            for group in groups:
                group.layer_names = [name for name in group.layer_names if name not in theirs]
            groups[:] = [group for group in groups if group.layer_names]

    def initialize_metadata_builders(
        self, kv_cache_config: Any, kernel_block_sizes: list[int]
    ) -> None:
        """vLLM's, then the same for every draft model's layers."""
        super().initialize_metadata_builders(kv_cache_config, kernel_block_sizes)
        for model in self.drafter.draft_models.values():
            model.bind_kv_cache(kv_cache_config, kernel_block_sizes)

    def _check_and_update_cudagraph_mode(
        self, attention_backends: list[set[Any]], *args: Any, **kwargs: Any
    ) -> None:
        # A layer without attention has no say in how the target's steps are captured.
        attending = [
            backends - {compat.CacheOnlyAttentionBackend} for backends in attention_backends
        ]
        super()._check_and_update_cudagraph_mode(attending, *args, **kwargs)
        mode = self.compilation_config.cudagraph_mode or compat.CUDAGraphMode.NONE
        for model in self.drafter.draft_models.values():
            model.set_cudagraph_mode(mode)

    def _update_states(self, scheduler_output: Any) -> Any:
        self.drafter.observe(scheduler_output)
        return super()._update_states(scheduler_output)

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        """vLLM decides here for the whole batch; the plan and the dispatch decide per row."""
        return common_attn_metadata is not None

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
        """The step's drafts, `[]` for a row without."""
        total = scheduler_output.total_num_scheduled_tokens
        self.drafter.keep_states(
            common_attn_metadata.slot_mapping[:total],
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
            draft_counts=verified or [0] * len(sampled_token_ids),
            sample_hidden=sample_hidden_states,
        )
        drafts: list[list[int]] = self.drafter.propose(plan, step)
        return drafts

    def _copy_draft_token_ids_to_cpu(self, *args: Any, **kwargs: Any) -> None:
        # Left undone when nothing was drafted, so that the scheduler is not told of it.
        if any(self._draft_token_ids):
            super()._copy_draft_token_ids_to_cpu(*args, **kwargs)

    def _calc_spec_decode_metadata(
        self, num_draft_tokens: Any, cu_num_scheduled_tokens: Any
    ) -> Any:
        # vLLM makes metadata for every step of an engine that could speculate. In one without
        # drafts each row's logits are those of its last token, and that is all there is to it.
        if num_draft_tokens.any():
            return super()._calc_spec_decode_metadata(num_draft_tokens, cu_num_scheduled_tokens)
        rows = len(num_draft_tokens)
        return SimpleNamespace(
            num_draft_tokens=[0] * rows,
            draft_token_ids=self.input_ids.gpu[:0],
            logits_indices=self.query_start_loc.gpu[1 : rows + 1] - 1,
        )

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        counts = spec_decode_metadata and spec_decode_metadata.num_draft_tokens
        self._sampled_drafts = self.drafter.sampled.take(counts)
        if not (self._sampled_drafts or (counts and any(counts))):
            spec_decode_metadata = None
        self._key_noise(spec_decode_metadata)
        return super()._sample(logits, spec_decode_metadata)

    def _get_spec_decode_draft_probs(self, spec_decode_metadata: Any) -> Mapping[int, SampledDraft]:
        """What `_sample` hands to the verifier, in the place of one tensor for all rows."""
        return self._sampled_drafts

    def _key_noise(self, metadata: Any) -> None:
        """Seeds the noise of every position that the step samples, for the rows with a seed."""
        batch = self.input_batch
        counts = [0] * batch.num_reqs if metadata is None else metadata.num_draft_tokens
        generators: dict[int, torch.Generator] = {}
        for row, generator in batch.generators.items():
            seed = self.requests[batch.req_ids[row]].sampling_params.seed
            token = int(batch.num_tokens_no_spec[row])
            generator.manual_seed(noise_key(seed, token))
            start = sum(counts[:row]) + row
            generators[start] = generator
            for offset in range(1, counts[row] + 1):
                generators[start + offset] = torch.Generator(self.device).manual_seed(
                    noise_key(seed, token + offset)
                )
        self.rejection_sampler.generators = generators

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        # A row in mid-prompt samples a token that is thrown away; vLLM then winds the row's
        # generator back by an offset, which CPU generators do not have. The noise is keyed anew
        # for each step, so there is nothing to wind back: such generators are kept out of sight.
        generators = self.input_batch.generators
        if not generators:
            return super()._bookkeeping_sync(*args, **kwargs)
        unread = self.discard_request_mask.np[: self.input_batch.num_reqs]
        held = {row: generators.pop(row) for row in list(generators) if unread[row]}
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            generators.update(held)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """vLLM's, with what drafting took on the output."""
        output = super().sample_tokens(grammar_output)
        if report := self.drafter.take_report():
            output.specgate_report = report
        return output


def cpu_runner() -> type:
    """The runner class for CPU; made here so that no process imports the other device's."""

    class SpecgateCPUModelRunner(RunnerHooks, compat.CPUModelRunner):
        """vLLM's CPU runner with Specgate's hooks."""

    return SpecgateCPUModelRunner


def gpu_runner() -> type:
    """The runner class for GPU."""

    class SpecgateGPUModelRunner(RunnerHooks, compat.GPUModelRunner):
        """vLLM's V1 GPU runner with Specgate's hooks."""

    return SpecgateGPUModelRunner
