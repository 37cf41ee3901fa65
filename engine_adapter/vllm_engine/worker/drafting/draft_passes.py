"""The passes in which a model drafts one token after the other, and the rows in each of them."""

from collections.abc import Sequence

import numpy as np
import torch

from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.proposers.draft_table import DraftRow, DraftTable
from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import (
    ForwardInputBuilder,
    ForwardInputs,
    Ints,
)

ForwardOutputs = tuple[torch.Tensor, torch.Tensor]
"""Of a forward pass: the states [T, H] that the logits come from, and the recurrent states [T, H]
that a head reads in its next pass. The same tensor for most models."""

RowSelection = slice | Ints
"""Which of some rows: the first ones, or indices."""


def gather(outputs: ForwardOutputs, index: torch.Tensor) -> ForwardOutputs:
    """The outputs at some positions, int [N]."""
    output, recurrent = outputs
    selected = output.index_select(0, index)
    if recurrent is output:
        return selected, selected
    return selected, recurrent.index_select(0, index)


def select_rows(values: torch.Tensor, rows: RowSelection) -> torch.Tensor:
    """The values of some rows, [N, ...]; the tensor itself for all, since a view takes time."""
    if isinstance(rows, slice) and rows.stop == values.shape[0]:
        return values
    return values[rows]


def in_order(values: torch.Tensor, rows: Ints) -> torch.Tensor:
    """The values of some rows, [N, ...], given as indices; nothing is uploaded for the first N."""
    if (rows == np.arange(len(rows))).all():
        return values[: len(rows)]
    (index,) = to_device(values.device, rows)
    return values[index]


class PassTokens:
    """The tokens of one pass after the other, in one table.

    Args:
        num_rows: R, the rows of the first pass.
        capacity: the most drafts of a row, for all of which the table has places.
        device: of the tokens.

    Attributes:
        newest: int64 [N], those of the newest pass.
    """

    def __init__(self, num_rows: int, capacity: int, device: torch.device) -> None:
        self._tokens = torch.zeros(num_rows, capacity, dtype=torch.int64, device=device)
        self._lengths = np.zeros(num_rows, np.intp)
        self.newest = self._tokens[:, 0]

    def add(self, rows: RowSelection, depth: int, tokens: torch.Tensor) -> None:
        """Adds the tokens of a pass, int64 [N], as the drafts of its rows at `depth`."""
        self._tokens[rows, depth] = self.newest = tokens
        self._lengths[rows] = depth + 1

    def drafts(self) -> list[DraftRow]:
        """The drafts of the R rows."""
        return drafts_of_table(DraftTable(self._tokens), self._lengths.tolist())


def by_most_drafts(k: Ints) -> tuple[Ints, list[int]]:
    """The order in which rows with more drafts come first, and how many of it take each draft.

    Args:
        k: int64 [R], the drafts of each row.

    Returns:
        int64 [R], and a number for each draft, from the first; it never rises.
    """
    max_k = int(k.max())
    if int(k.min()) == max_k:
        return np.arange(len(k)), [len(k)] * max_k
    counts: list[int] = (k[:, None] > np.arange(max_k)).sum(axis=0).tolist()
    return (-k).argsort(kind="stable"), counts


def drafts_of_table(table: DraftTable, lengths: Sequence[int]) -> list[DraftRow]:
    """The drafts of the rows of a table, of each the first ones."""
    return [DraftRow(table, row, length) for row, length in enumerate(lengths)]


class DraftPasses:
    """The passes after the first one, each of one token for the rows that draft further.

    Args:
        builder: builds their inputs.
        batch: the rows.
        order: int64 [R], indices of the batch; rows with more drafts come first.
        stop: int64 [R], each row's known positions, or a bound: its drafts follow them.
        counts: how many of `order` take each draft, from the first; it never rises.
        behind: int [R], on the device, how far each row's positions are below the bound; `None` if
            `stop` is their number.
        advances: each pass is one position further than the last; otherwise all are at `stop`.

    Attributes:
        selection: which of `order` are in the newest pass: a slice, or int64 [N] once a gate
            decides.
    """

    def __init__(
        self,
        builder: ForwardInputBuilder,
        batch: DraftBatch,
        order: Ints,
        stop: Ints,
        counts: Sequence[int],
        behind: torch.Tensor | None = None,
        advances: bool = True,
    ) -> None:
        self._builder, self._batch, self._order, self._stop = builder, batch, order, stop
        if behind is not None and len(counts) > 1:
            behind = in_order(behind, order[: counts[1]])
        self._advances = advances
        steps = builder.decode_steps(batch.rows[order], stop[order], counts[1:], behind, advances)
        self._planned = zip(counts[1:], steps, strict=True)
        self._depth = 0
        self.selection: RowSelection = slice(counts[0])

    def next(self) -> tuple[RowSelection, ForwardInputs | None]:
        """Which rows of the pass before stay, and the inputs of theirs; `None` without a row."""
        batch, sampling, rows = self._batch, self._batch.sampling, self._order[self.selection]
        self._depth += 1
        open_rows = None if sampling is None else sampling.is_open(rows)
        if open_rows is None:
            count, inputs = next(self._planned)
            self.selection = slice(count)
            return self.selection, inputs
        staying = np.flatnonzero(open_rows & (batch.k[rows] > self._depth))
        self.selection = np.arange(len(self._order))[self.selection][staying]
        if not len(staying):
            return staying, None
        rows = rows[staying]
        start = self._stop[rows] + (self._depth - 1) * self._advances
        return staying, self._builder.prefill(batch.rows[rows], start, np.ones_like(start))
