"""The model runner: vLLM's V1 runners with hooks only; what happens in them is elsewhere."""

from typing import Any

import numpy as np
import torch

from engine_adapter.vllm_engine import compat


class RunnerHooks:
    """Mixed into a V1 runner whose drafter is a `ProposerDispatch`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.drafter.bind(self)

    def initialize_metadata_builders(self, kv_cache_config: Any, block_sizes: list[int]) -> None:
        """vLLM's, then the same for every draft model's layers."""
        super().initialize_metadata_builders(kv_cache_config, block_sizes)
        for model in self.drafter.draft_models.values():
            model.bind_kv_cache(kv_cache_config, block_sizes)

    def _check_and_update_cudagraph_mode(self, *args: Any, **kwargs: Any) -> None:
        super()._check_and_update_cudagraph_mode(*args, **kwargs)
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
        self, scheduler_output: Any, sampled_token_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> list[list[int]]:
        """The step's drafts, `[]` for a row without."""
        plan = scheduler_output.specgate_plan
        if not plan:
            return []
        drafts: list[list[int]] = self.drafter.propose(
            plan, scheduler_output.num_scheduled_tokens, sampled_token_ids
        )
        return drafts

    def _copy_draft_token_ids_to_cpu(self, *args: Any, **kwargs: Any) -> None:
        # Left undone when nothing was drafted, so that the scheduler is not told of it.
        if any(self._draft_token_ids):
            super()._copy_draft_token_ids_to_cpu(*args, **kwargs)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """vLLM's, with what drafting took on the output."""
        output = super().sample_tokens(grammar_output)
        if report := self.drafter.take_report():
            output.specgate_report = report
        return output


class SeededPrefill:
    """Repairs seeded requests whose prompt is read in chunks, on CPU.

    A chunk that does not end the prompt samples a token that is thrown away, and vLLM then winds
    the request's generator back by its offset, which CPU generators do not have: the engine
    dies. Here the generator's state is kept and put back, which is the same for any device.
    """

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        unread = np.flatnonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])
        generators = self.input_batch.generators
        held = {int(row): generators[int(row)] for row in unread if int(row) in generators}
        states = {row: generator.get_state() for row, generator in held.items()}
        output = super()._sample(logits, spec_decode_metadata)
        for row, generator in held.items():
            generator.set_state(states[row])
        return output

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        unread = np.flatnonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])
        generators = self.input_batch.generators
        held = {int(row): generators.pop(int(row)) for row in unread if int(row) in generators}
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            generators.update(held)


def cpu_runner() -> type:
    """The runner class for CPU; made here so that no process imports the other device's."""

    class SpecgateCPUModelRunner(RunnerHooks, SeededPrefill, compat.CPUModelRunner):
        """vLLM's CPU runner with Specgate's hooks."""

    return SpecgateCPUModelRunner


def gpu_runner() -> type:
    """The runner class for GPU."""

    class SpecgateGPUModelRunner(RunnerHooks, compat.GPUModelRunner):
        """vLLM's V1 GPU runner with Specgate's hooks."""

    return SpecgateGPUModelRunner
