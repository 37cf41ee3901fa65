"""CUDA graphs and warm-up: what vLLM does on a GPU before it serves, with drafts.

vLLM captures graphs of its own draft model. Specgate's speculator stands in its place, and passes
the calls on to every draft model and head.
"""

from typing import Any

import torch

from engine_adapter.policies.contract import StepPlan
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.module_names import patch_graph_manager
from engine_adapter.vllm_engine.worker.drafting.tensor_parallel import is_only_rank
from engine_adapter.vllm_engine.worker.verification.rejection import drafted_bytes


class WarmUpHooks:
    """Mixed into a runner, before `RunnerHooks`.

    Attributes:
        warms_up_drafts: whether a dummy run includes the draft models: while the engine starts.
    """

    warms_up_drafts = True
    drafter: Any
    device: torch.device
    compilation_config: Any
    parallel_config: Any
    max_num_tokens: int
    attn_groups: Any
    model_state: Any
    vllm_config: Any
    _capacity: int
    _graph_mode: Any = None

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        """Initializes as vLLM does, with graphs for rows that have different numbers of drafts."""
        with patch_graph_manager(self._graph_manager):
            super().initialize_kv_cache(*args, **kwargs)

    def _graph_manager(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's, with the graphs of its adaptive verification, or `PlannedGraphs`."""
        if self._replays_any_lengths():
            return compat.ModelCudaGraphManager(*args, **{**kwargs, "varlen_decode": True})
        from engine_adapter.vllm_engine.worker.graphs import PlannedGraphs

        return PlannedGraphs(*args, **kwargs)

    def _replays_any_lengths(self) -> bool:
        """Whether a graph of the target serves rows of different lengths.

        Some attention allows it up to a length, for vLLM's adaptive verification. It is left out:
        without that verification vLLM does not tell it this length.
        """
        of_state, _ = self.model_state.get_additional_cg_support()
        of_attention = (
            group.get_metadata_builder().get_cudagraph_support(
                self.vllm_config, group.kv_cache_spec
            )
            for groups in self.attn_groups
            for group in groups
        )
        always = compat.AttentionCGSupport.ALWAYS
        return all(support == always for support in (of_state, *of_attention))

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs a step. One that the kernels are warmed up with is vLLM's own, and has no plan."""
        if not hasattr(scheduler_output, "specgate_plan"):
            scheduler_output.specgate_plan = StepPlan()
            scheduler_output.specgate_quarantined = frozenset()
            scheduler_output.specgate_constraints = {}
        return super().execute_model(scheduler_output, *args, **kwargs)

    def dummy_draft(self, num_tokens: int) -> None:
        """Runs the draft models too, in a dummy run of the target with that many tokens."""
        if self.warms_up_drafts:
            self.drafter.host.dummy_run(num_tokens, graphs=False)

    def _dummy_sampler_run(self, hidden_states: torch.Tensor) -> Any:
        """Holds the memory that drafts take meanwhile, so that vLLM does not give it to the KV."""
        host, rows = self.drafter.host, len(hidden_states)
        # A step reads its drafts, too.
        drafts = max(min(rows * self._capacity, self.max_num_tokens - rows), 0)
        size = drafted_bytes(rows, drafts, host.target.vocab_size, hidden_states.dtype)
        drafted = torch.empty(size, dtype=torch.uint8, device=self.device)
        sampled = host.sampling_memory(rows)
        output = super()._dummy_sampler_run(hidden_states)
        del drafted, sampled
        return output

    def capture_model(self, *args: Any, **kwargs: Any) -> Any:
        """Captures as vLLM does; graphs of its profile of graph memory are for no step."""
        captured = super().capture_model(*args, **kwargs)
        if kwargs.get("profile_only"):
            for model in self.drafter.host.draft_models.values():
                model.drop_passes()
        return captured

    def prepare_draft_graphs(self, mode: Any) -> None:
        """Takes the mode of graphs that vLLM chose for the target, and tells the draft models."""
        self._graph_mode = mode
        for model in self.drafter.host.draft_models.values():
            model.set_cudagraph_mode(mode)

    def capture_drafts(self) -> None:
        """Captures the passes of every draft model, and their pieces in the sizes of the target's.

        What is not captured here would be while the engine serves.
        """
        if not self._graph_mode:
            return
        if self._graph_mode.decode_mode() == compat.CUDAGraphMode.FULL and is_only_rank(
            self.parallel_config
        ):
            for model in self.drafter.host.draft_models.values():
                model.capture_passes()
        if not self._graph_mode.mixed_mode():
            return
        sizes = sorted(self.compilation_config.cudagraph_capture_sizes or (), reverse=True)
        with compat.parallel_state.graph_capture(self.device):
            for size in sizes:
                for graphs in (False, True):  # a pass before that warms its kernels up
                    self.drafter.host.dummy_run(size, graphs)
