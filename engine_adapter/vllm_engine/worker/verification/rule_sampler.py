"""vLLM's plain sampler with a place for the rules of sampled drafts.

Imports vLLM's runner: only a worker's process may import it.
"""

from typing import Any

import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification.rejection import SpeculativeSampling


class RuleSampler(compat.V2Sampler):
    """Leaves to the noise only the tokens that the rules of a step's sampled drafts emit.

    Attributes:
        rule: of the next step; `None` if no row of it has sampled drafts.
    """

    rule: SpeculativeSampling | None = None

    def sample(
        self,
        logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        pos: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens, int64 [P], and the logits [P, V] after all options, as vLLM's."""
        rows = expanded_idx_mapping, idx_mapping, idx_mapping_np, pos
        if self.rule is None:
            plain: tuple[torch.Tensor, torch.Tensor] = super().sample(
                logits, *rows, *args, **kwargs
            )
            return plain
        processed = self.apply_sampling_params(logits, *rows, *args)
        # Log probabilities are read from the logits, or from the processed ones, later.
        emitted = self.rule.apply(processed.to(torch.float32, copy=True))
        states = self.sampling_states
        tokens = compat.v2_gumbel.gumbel_sample(
            emitted,
            expanded_idx_mapping,
            states.temperature.gpu,
            states.seeds.gpu,
            pos,
            apply_temperature=False,
            is_drafting=False,
            use_fp64=self.use_fp64_gumbel,
        )
        return tokens, processed
