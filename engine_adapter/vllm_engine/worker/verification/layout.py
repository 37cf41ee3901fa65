"""Positions laid out as the rows of a plain batch: those of a verification step, or of drafts."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.staging import to_device

_NO_TOKEN = np.full(1, -1, np.int32)
"""What vLLM's output has after the tokens of a row."""


class Layout(Protocol):
    """P positions of the B rows of a batch; those of one row follow each other.

    Attributes:
        device: where its tensors are.
    """

    device: torch.device

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
        device: see `Layout`.

    Attributes:
        row_of: int64 [N], the row of each position.
        starts, sizes, device: see `Layout`.
    """

    def __init__(
        self, rows: npt.NDArray[np.intp], depth: int, num_rows: int, device: torch.device
    ) -> None:
        self.device = device
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
        device: see `Layout`.

    Attributes:
        num_draft_tokens: the draft counts.
        starts_on_cpu: `starts` on the CPU.
        row_of: int64 [T + B], the row of each position.
        starts, sizes, device: see `Layout`.
        width: the largest number of positions of a row.
    """

    def __init__(self, num_draft_tokens: list[int], device: torch.device) -> None:
        self.num_draft_tokens, self.device = num_draft_tokens, device
        sizes = np.asarray(num_draft_tokens, np.int64) + 1
        stops = sizes.cumsum()
        self.starts_on_cpu = stops - sizes
        self.width = int(sizes.max())
        # Indices into [samples, no token, drafts], [3, B, width]: of the sample at each place of a
        # row, of the sample before it and of the draft that this one must equal. A first place has
        # nothing before it, so it is compared with itself.
        num_rows, num_samples = len(sizes), int(stops[-1])
        offset, rows = np.arange(self.width), np.arange(num_rows)
        places = np.empty((3, num_rows, self.width), np.int64)
        here, before, draft = places
        np.add(self.starts_on_cpu[:, None], offset, out=here)
        np.subtract(here, 1, out=before)
        np.add(here, (num_samples - rows)[:, None], out=draft)
        places[:, :, 0] = self.starts_on_cpu
        if num_samples < here.size:
            np.copyto(places, num_samples, where=offset >= sizes[:, None])
        self.row_of, self.starts, self.sizes, self._places, self._no_token = to_device(
            device,
            rows.repeat(sizes),
            self.starts_on_cpu,
            sizes,
            places.reshape(-1),
            _NO_TOKEN,
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
        known = torch.cat([samples, self._no_token, drafts])
        placed = known.index_select(0, self._places).view(3, -1, self.width)
        sampled, before, draft = placed.unbind()
        refused = (before != draft).cumsum(1).bool()
        return sampled.int().masked_fill(refused, -1)
