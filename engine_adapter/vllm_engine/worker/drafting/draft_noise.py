"""The noise with which drafts are sampled: where a row has a seed, that of the target's samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine import compat


class DraftNoise:
    """Samples drafts. vLLM's noise is a hash of seed, position and token.

    A row with a seed gets the noise that the target will use in its place. A row without one has a
    seed of vLLM's choice, which its drafts must not use: the token rule and the block rule are for
    drafts that are independent of the noise of their verification, and of earlier drafts in the
    same place.

    Args:
        sampler: vLLM's plain sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def sample(
        self, logits: torch.Tensor, seeds: Sequence[int | None], places: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """A token of each of N rows, int64 [N].

        Args:
            logits: float32 [N, V], after all options.
            seeds: of each row; one without gets new noise in every call.
            places: int64 [N], how many tokens precede each row's token.
        """
        has_seed = np.array([seed is not None for seed in seeds])
        if not has_seed.any():
            return _with_new_noise(logits)
        numbers = np.array([seed or 0 for seed in seeds], np.int64)
        # The target samples a token at the position of the token before it.
        coupled, seed_numbers, positions = to_device(logits.device, has_seed, numbers, places - 1)
        sampled: torch.Tensor = compat.v2_gumbel.gumbel_sample(
            logits,
            torch.arange(len(logits), device=logits.device),
            torch.ones(len(logits), device=logits.device),
            seed_numbers,
            positions,
            apply_temperature=False,
            is_drafting=False,
            use_fp64=self._sampler.use_fp64_gumbel,
        )
        sampled.clamp_(max=logits.shape[1] - 1)  # of NaN, a kernel may return any index
        if has_seed.all():
            return sampled
        return torch.where(coupled, sampled, _with_new_noise(logits))


def _with_new_noise(logits: torch.Tensor) -> torch.Tensor:
    """Samples by exponential noise of torch's own generator: the token of the least noise / p."""
    noise = torch.empty_like(logits).exponential_().clamp_(min=torch.finfo(logits.dtype).tiny)
    return (logits - noise.log_()).argmax(dim=-1)
