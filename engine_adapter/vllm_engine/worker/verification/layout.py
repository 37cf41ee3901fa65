"""A verification step laid out as a plain batch, and the noise of a position under a seed."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch

_MASK = (1 << 64) - 1


def noise_key(seed: int, position: int) -> int:
    """32 well-mixed bits of (seed, position); CPU generators use no more. SplitMix64's finisher."""
    mixed = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) >> 32


class Positions:
    """Each row's drafted positions, then one more, row after row.

    Args:
        counts: B draft counts, which sum to T.
        device: where the index tensors are wanted.

    Attributes:
        counts: the draft counts.
        row: int64 [T + B], the row that each position belongs to.
        width: the most positions of a row.
    """

    def __init__(self, counts: list[int], device: torch.device) -> None:
        self._sizes = np.asarray(counts, np.int64) + 1
        self._starts = np.cumsum(self._sizes) - self._sizes
        row = np.repeat(np.arange(len(counts)), self._sizes)
        offset = np.arange(len(row)) - self._starts[row]
        self.counts = counts
        self.width = int(self._sizes.max())
        self.row = torch.from_numpy(row).to(device)
        cells = row * self.width + offset
        self._cells = torch.from_numpy(cells).to(device)
        drafted = offset + 1 < self._sizes[row]
        self._draft_cells = torch.from_numpy(cells[drafted]).to(device)

    @cached_property
    def starts(self) -> torch.Tensor:
        """Each row's first position, int64 [B]."""
        return torch.from_numpy(self._starts).to(self.row.device)

    @cached_property
    def sizes(self) -> torch.Tensor:
        """How many positions each row has, int64 [B]."""
        return torch.from_numpy(self._sizes).to(self.row.device)

    def spread(self, values: torch.Tensor | None) -> torch.Tensor | None:
        """Per-row values [B, ...] as per-position values [T + B, ...]."""
        return None if values is None else values[self.row]

    def of_row(self, row: int) -> Iterator[tuple[int, int]]:
        """The (position, offset) pairs of a row."""
        start = sum(self.counts[:row]) + row
        return ((start + offset, offset) for offset in range(self.counts[row] + 1))

    def keep_agreeing(self, drafts: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        """What each row emits.

        Args:
            drafts: int [T], the rows' drafts one after the other.
            samples: int [T + B], what was sampled at each position.

        Returns:
            int32 [B, width], padded with -1: the samples up to the first that differs from its
            draft, or all of them.
        """
        shape = (len(self.counts), self.width)
        output = torch.full(shape, -1, dtype=torch.int32, device=samples.device)
        drafted = output.clone()
        output.view(-1)[self._cells] = samples.int()
        drafted.view(-1)[self._draft_cells] = drafts.int()
        kept = (output == drafted)[:, :-1].cumprod(1)
        output[:, 1:].masked_fill_(kept == 0, -1)
        return output
