"""The noise with which drafts are sampled, on each runner that of the target's own samples."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.vllm_engine.worker.verification.seeding import (
    draft_generators,
    position_seeds,
)


class DraftNoise(Protocol):
    """Samples drafts. A row with a seed gets the noise that the target will use in its place."""

    def sample(
        self, logits: torch.Tensor, seeds: Sequence[int | None], places: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """A token of each of N rows, int64 [N].

        Args:
            logits: float32 [N, V], after all options.
            seeds: of each row; one without gets new noise in every call.
            places: int64 [N], how many tokens precede each row's token.
        """
        ...


class GeneratorNoise:
    """That of runner V1, whose rows with a seed have generators.

    Args:
        sampler: vLLM's plain sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def sample(
        self, logits: torch.Tensor, seeds: Sequence[int | None], places: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """See `DraftNoise.sample`."""
        pairs = [(i, seed) for i, seed in enumerate(seeds) if seed is not None]
        seeded = [i for i, _ in pairs]
        mixed = position_seeds([seed for _, seed in pairs], places[seeded])
        generators = draft_generators(logits.device).seeded(seeded, mixed)
        sampled, _ = self._sampler.topk_topp_sampler(logits, generators, None, None)
        return sampled.long()
