"""Positions laid out as the rows of a plain batch: those of a verification step, or of drafts."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.staging import to_device


class Layout(Protocol):
    """P positions of the B rows of a batch; those of one row follow each other."""

    @property
    def row_of(self) -> torch.Tensor:
        """The row of each position, int64 [P]."""
        ...

    @property
    def starts(self) -> torch.Tensor:
        """The first position of each row, int64 [B]."""
        ...

    @property
    def sizes(self) -> torch.Tensor:
        """The number of positions of each row, int64 [B]."""
        ...

    def expand(self, values: torch.Tensor | None) -> torch.Tensor | None:
        """Per-row values [B, ...] as per-position values [P, ...]."""
        ...

    def positions_of(self, row: int) -> Iterator[tuple[int, int]]:
        """The (position, drafts of the row before it) pairs of a row."""
        ...


class DraftLayout:
    """One position of each of N rows, after the same number of drafts.

    Args:
        rows: the rows, int [N], each once.
        depth: the drafts of each row before its position.
        num_rows: B, the rows of the batch.
        device: the device of the index tensors.

    Attributes:
        row_of: int64 [N], the row of each position.
        starts, sizes: see `Layout`.
    """

    def __init__(
        self, rows: npt.NDArray[np.intp], depth: int, num_rows: int, device: torch.device
    ) -> None:
        starts, sizes = np.zeros((2, num_rows), np.int64)
        starts[rows], sizes[rows] = np.arange(len(rows)), 1
        self._positions, self._depth = (
            dict(zip(rows.tolist(), range(len(rows)), strict=True)),
            depth,
        )
        self.row_of, self.starts, self.sizes = to_device(
            device, rows.astype(np.int64), starts, sizes
        )

    def expand(self, values: torch.Tensor | None) -> torch.Tensor | None:
        """See `Layout.expand`."""
        return None if values is None else values[self.row_of]

    def positions_of(self, row: int) -> Iterator[tuple[int, int]]:
        """See `Layout.positions_of`."""
        if (position := self._positions.get(row)) is not None:
            yield position, self._depth


class VerifyLayout:
    """The positions of a step, row after row: those of the row's drafts, then one more.

    Args:
        num_draft_tokens: the draft counts of the B rows, which sum to T.
        device: the device of the index tensors.

    Attributes:
        num_draft_tokens: the draft counts.
        starts_on_cpu: `starts` on the CPU.
        row_of: int64 [T + B], the row of each position.
        starts, sizes: see `Layout`.
        width: the largest number of positions of a row.
    """

    def __init__(self, num_draft_tokens: list[int], device: torch.device) -> None:
        sizes = np.asarray(num_draft_tokens, np.int64) + 1
        self.starts_on_cpu = np.cumsum(sizes) - sizes
        self.num_draft_tokens = num_draft_tokens
        self.width = int(sizes.max())
        # A position's cell is its index in a flat [B * width] tensor.
        cells = np.flatnonzero(np.arange(self.width) < sizes[:, None])
        row, offset = np.divmod(cells, self.width)
        after_draft = np.flatnonzero(offset)
        self.row_of, self.starts, self.sizes, self._cells, self._draft_positions, self._next = (
            to_device(
                device, row, self.starts_on_cpu, sizes, cells, after_draft - 1, cells[after_draft]
            )
        )

    def expand(self, values: torch.Tensor | None) -> torch.Tensor | None:
        """Per-row values [B, ...] as per-position values [T + B, ...]."""
        return None if values is None else values[self.row_of]

    def positions_of(self, row: int) -> Iterator[tuple[int, int]]:
        """The (position, offset in the row) pairs of a row."""
        start = int(self.starts_on_cpu[row])
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
        output.view(-1)[self._cells] = samples.int()
        refused = torch.zeros(shape, dtype=torch.bool, device=samples.device)
        refused.view(-1)[self._next] = samples[self._draft_positions] != drafts
        return output.masked_fill_(refused.cumsum(1) > 0, -1)
