"""Seeds of a request's noise, one for each token position, and the generators that they seed."""

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

_MASK = (1 << 64) - 1

Seeds = npt.NDArray[np.uint64]


def position_seeds(seeds: Sequence[int], positions: npt.NDArray[np.int64]) -> Seeds:
    """32 well-mixed bits of each request's seed and the position of the token that is sampled.

    CPU generators use no more than 32 bits. The mixing is that of SplitMix64 (its finalizer).

    Args:
        seeds: N integers of any size.
        positions: int64 [N].

    Returns:
        uint64 [N].
    """
    # The mixing counts modulo 2**64, as arrays of unsigned integers do.
    mixed = np.array([seed & _MASK for seed in seeds], np.uint64)
    mixed = mixed * np.uint64(0x9E3779B97F4A7C15)
    mixed += positions.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(32)


class GeneratorPool:
    """Generators that are seeded again for each use: to make one takes longer.

    Args:
        device: of the noise.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: list[torch.Generator] = []

    def seeded(self, keys: Iterable[int], seeds: Seeds) -> dict[int, torch.Generator]:
        """A generator for each of N keys, until the next call."""
        self._made += [torch.Generator(self._device) for _ in range(len(seeds) - len(self._made))]
        made = zip(keys, self._made, seeds.tolist(), strict=False)
        return {key: generator.manual_seed(seed) for key, generator, seed in made}

    def seeded_rows(
        self,
        rows: npt.NDArray[np.intp],
        seeds: Sequence[int],
        num_tokens: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
    ) -> dict[int, torch.Generator]:
        """A generator for every position that a step samples in N rows, until the next call.

        Args:
            rows: [N], of the batch of B rows.
            seeds: of each of the N rows.
            num_tokens: int64 [N], each row's committed tokens.
            counts: int64 [B], the drafts of every row of the batch.
        """
        sizes = counts[rows] + 1
        row = np.repeat(np.arange(len(rows)), sizes)
        offset = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        first = np.cumsum(counts + 1) - counts - 1
        mixed = position_seeds([seeds[i] for i in row.tolist()], num_tokens[row] + offset)
        return self.seeded((first[rows][row] + offset).tolist(), mixed)


@cache
def draft_generators(device: torch.device) -> GeneratorPool:
    """The generators of draft passes on a device: one pass has sampled before the next begins."""
    return GeneratorPool(device)
