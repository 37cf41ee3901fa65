"""Ranks of log probabilities on a CPU, without a compiler."""

import torch

from engine_adapter.vllm_engine import compat


def patch_logprob_ranks() -> None:
    """Replaces the one function of vLLM's sampler that is compiled when it is first needed.

    The compiler takes five seconds and more within a step, so the first request for log
    probabilities held up every stream. Without it the function makes a boolean for each logit.
    """
    compat.sampler.batched_count_greater_than = count_not_below


def count_not_below(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """For each row of `x` [N, vocabulary], how many are at least its one of `values` [N, 1]."""
    return (x >= values).sum(-1)
