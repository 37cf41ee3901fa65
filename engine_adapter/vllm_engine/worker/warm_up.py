"""The drafts' part in what vLLM does on a GPU before it serves: profiling, warm-up, graph capture.

vLLM includes its own draft model in these, and no drafter of another class. A forward pass whose
graph was not captured then would be captured while the engine serves, which vLLM refuses.
"""

from typing import Any

import torch

from engine_adapter.vllm_engine import compat


class WarmUpHooks:
    """Mixed into a V1 runner whose drafter is a `ProposerDispatch`.

    Attributes:
        warms_up_drafts: whether a dummy run includes the draft models: while the engine starts.
    """

    warms_up_drafts = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # vLLM captures whole steps in which every row has as many drafts as the engine allows. Here
        # rows have drafts of several lengths, or none: such a step would hardly ever come, and a
        # step without drafts would run in pieces.
        self.uniform_decode_query_len = 1
        self.cudagraph_dispatcher.uniform_decode_query_len = 1

    def _dummy_run(
        self, num_tokens: int, cudagraph_runtime_mode: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Runs every draft model too, on the conditions on which vLLM runs its own."""
        outputs = super()._dummy_run(num_tokens, cudagraph_runtime_mode, *args, **kwargs)
        if self.warms_up_drafts:
            none = compat.CUDAGraphMode.NONE
            capturing = bool(kwargs.get("is_graph_capturing"))
            # Without a mode vLLM chooses one; where it leaves that open, it has no graphs yet.
            mode = cudagraph_runtime_mode or none
            # A draft model has graphs of its pieces only.
            graphs = mode == compat.CUDAGraphMode.PIECEWISE if capturing else mode != none
            if self.compilation_config.cudagraph_specialize_lora and kwargs.get("num_active_loras"):
                graphs = False
            self.drafter.host.dummy_run(num_tokens, graphs, capturing)
        return outputs

    def _dummy_sampler_run(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Holds the memory of sampled drafts meanwhile, so that vLLM does not give it to the KV."""
        held = self.drafter.host.sampling_memory(len(hidden_states))
        output: torch.Tensor = super()._dummy_sampler_run(hidden_states)
        del held
        return output
