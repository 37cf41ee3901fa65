"""A verification step laid out as a plain batch: one entry for each position that is verified."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch


class VerifyLayout:
    """The positions of a step, row after row: those of the row's drafts, then one more.

    Args:
        num_draft_tokens: the draft counts of the B rows, which sum to T.
        device: the device of the index tensors.

    Attributes:
        num_draft_tokens: the draft counts.
        row_of: int64 [T + B], the row of each position.
        width: the largest number of positions of a row.
    """

    def __init__(self, num_draft_tokens: list[int], device: torch.device) -> None:
        self._sizes = np.asarray(num_draft_tokens, np.int64) + 1
        self._starts = np.cumsum(self._sizes) - self._sizes
        row = np.repeat(np.arange(len(num_draft_tokens)), self._sizes)
        offset = np.arange(len(row)) - self._starts[row]
        self.num_draft_tokens = num_draft_tokens
        self.width = int(self._sizes.max())
        self.row_of = torch.from_numpy(row).to(device)
        # Indices into a flat [B * width] tensor.
        cells = row * self.width + offset
        self._cells = torch.from_numpy(cells).to(device)
        is_draft = offset + 1 < self._sizes[row]
        self._draft_cells = torch.from_numpy(cells[is_draft]).to(device)

    @cached_property
    def starts(self) -> torch.Tensor:
        """The first position of each row, int64 [B]."""
        return torch.from_numpy(self._starts).to(self.row_of.device)

    @cached_property
    def sizes(self) -> torch.Tensor:
        """The number of positions of each row, int64 [B]."""
        return torch.from_numpy(self._sizes).to(self.row_of.device)

    def expand(self, values: torch.Tensor | None) -> torch.Tensor | None:
        """Per-row values [B, ...] as per-position values [T + B, ...]."""
        return None if values is None else values[self.row_of]

    def positions_of(self, row: int) -> Iterator[tuple[int, int]]:
        """The (position, offset in the row) pairs of a row."""
        start = sum(self.num_draft_tokens[:row]) + row
        return ((start + offset, offset) for offset in range(self.num_draft_tokens[row] + 1))

    def accept_matching(self, drafts: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        """The tokens that each row emits.

        Args:
            drafts: int [T], the rows' drafts one after the other.
            samples: int [T + B], the token that was sampled at each position.

        Returns:
            int32 [B, width], padded with -1: the samples up to the first that differs from its
            draft, or all of them.
        """
        shape = (len(self.num_draft_tokens), self.width)
        output = torch.full(shape, -1, dtype=torch.int32, device=samples.device)
        drafted = output.clone()
        output.view(-1)[self._cells] = samples.int()
        drafted.view(-1)[self._draft_cells] = drafts.int()
        accepted = (output == drafted)[:, :-1].cumprod(1)
        output[:, 1:].masked_fill_(accepted == 0, -1)
        return output
