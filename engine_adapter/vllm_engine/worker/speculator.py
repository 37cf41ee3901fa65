"""The one speculator of vLLM's runner. It asks the runner, whose plan has a proposer for each row.

Imports vLLM's runner: only a worker's process may import it.
"""

from typing import Any

import torch

from engine_adapter.vllm_engine import compat


class PlannedSpeculator(compat.BaseSpeculator):
    """Takes the place of vLLM's speculator.

    Args:
        runner: drafts for a step, and before the engine serves: see `RunnerHooks.draft` and
            `WarmUpHooks`.
        capacity: the most drafts of a row.

    Attributes:
        supports_mm_inputs: false: proposers read token ids.
        draft_logits: `None`: no draft is verified with the distribution that it came from.
    """

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, runner: Any, capacity: int) -> None:
        self._runner = runner
        self._capacity = capacity

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Prepares the graphs of draft models: see `WarmUpHooks.prepare_draft_graphs`."""
        self._runner.prepare_draft_graphs(cudagraph_mode)

    def capture(self) -> None:
        """Captures them."""
        self._runner.capture_drafts()

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The drafts of a step, int64 [B, capacity]; any valid token where a row has none."""
        if kwargs.get("dummy_run"):
            self._runner.dummy_draft(input_batch.num_tokens)
            shape = input_batch.num_reqs, self._capacity
            return num_sampled.new_zeros(shape, dtype=torch.int64)
        counts = num_sampled, num_rejected
        drafts: torch.Tensor = self._runner.draft(
            input_batch, slot_mappings, last_hidden_states, aux_hidden_states, counts
        )
        return drafts
