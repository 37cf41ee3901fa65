"""The KV cache groups that hold a draft model's layers.

vLLM puts layers into groups, each with a block table of its own, if some of the engine's layers
keep other tokens than others (sliding windows, recurrent states). All groups take their blocks from
one pool. A position's draft KV is valid if it is valid in every group of the draft model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.machine_code import machine_code
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.kv_ledger import (
    BlockSlice,
    DraftKVLedger,
    Lengths,
)


@dataclass(frozen=True, slots=True)
class GroupBlocks:
    """The unsettled blocks of R rows.

    Attributes:
        rows: int [R], indices into the engine's batch.
        by_group: KV cache group -> its blocks.
    """

    rows: npt.NDArray[np.intp]
    by_group: Mapping[int, BlockSlice]

    def __getitem__(self, gid: int) -> BlockSlice:
        return self.by_group[gid]

    def select(self, index: npt.NDArray[np.intp]) -> "GroupBlocks":
        """Those of the rows at `index`, [N], ascending."""
        if len(index) == len(self.rows):
            return self
        by_group = {gid: blocks.select(index) for gid, blocks in self.by_group.items()}
        return GroupBlocks(self.rows[index], by_group)


Ledger = TypeVar("Ledger", bound=DraftKVLedger)


class DraftKVGroups(Generic[Ledger]):
    """One ledger for each group of a draft model's layers.

    The first positions of a row that hold valid KV in every group are settled: they stay valid
    while the request has the row, since its blocks are neither freed nor changed. Only the blocks
    after them are looked at.

    Args:
        block_sizes: group -> tokens per block.
        num_blocks: blocks of the pool.
        num_rows: of the engine's batch.
        new_ledger: makes a ledger from the number of blocks and the tokens per block.

    Attributes:
        ledgers: group -> its ledger.
    """

    def __init__(
        self,
        block_sizes: Mapping[int, int],
        num_blocks: int,
        num_rows: int,
        new_ledger: Callable[[int, int], Ledger],
    ) -> None:
        self.ledgers = {gid: new_ledger(num_blocks, size) for gid, size in block_sizes.items()}
        self._num_settled = np.zeros(num_rows, np.int64)
        no_rows = np.zeros(0, np.int64)  # the code is compiled here, and not in the first step
        _find_blocks(np.zeros((1, 1), np.int32), no_rows, no_rows, no_rows, 1, 1)

    def blocks_changed(
        self, new_blocks: Sequence[Sequence[int]], copies: Sequence[tuple[int, int]]
    ) -> None:
        """Follows the blocks of each group that were allocated, and the copies of blocks.

        Args:
            new_blocks: for every group of the engine, the blocks that it allocated.
            copies: pairs of (source, destination), of any group.
        """
        for gid, ledger in self.ledgers.items():
            if new_blocks[gid]:
                ledger.reset(new_blocks[gid])
            if copies:
                ledger.copy(copies)

    def unsettle(self, rows: Sequence[int] | slice) -> None:
        """The rows have other blocks now, or another row has changed a block that they share."""
        self._num_settled[rows] = 0

    def blocks(self, tables: Any, rows: npt.NDArray[np.intp], lengths: Lengths) -> GroupBlocks:
        """The KV manager's ids of the rows' unsettled blocks for `lengths` positions, int64 [R].

        vLLM's tables have the ids of kernel blocks; a block consists of one or more of them.

        Args:
            tables: vLLM's block tables of the batch, by group.
            rows: int [R].
        """
        by_group, num_settled = {}, self._num_settled[rows]
        for gid, ledger in self.ledgers.items():
            table, size = tables[gid], ledger.block_size
            ratio = size // table.block_size
            by_group[gid] = BlockSlice(
                *_find_blocks(
                    table.get_numpy_array(), rows, num_settled // size, lengths, size, ratio
                )
            )
        return GroupBlocks(rows, by_group)

    def first_missing(self, blocks: GroupBlocks, lengths: Lengths) -> Lengths:
        """The first position of each row whose KV is missing in any group.

        See `DraftKVLedger.first_missing`.
        """
        missing = lengths
        for gid, ledger in self.ledgers.items():
            missing = np.minimum(missing, ledger.first_missing(blocks[gid], lengths))
        return missing

    def mark_valid(self, blocks: GroupBlocks, lengths: Lengths) -> None:
        """Each row's first `lengths` positions hold KV now, and are settled."""
        for gid, ledger in self.ledgers.items():
            ledger.mark_valid(blocks[gid], lengths)
        self._num_settled[blocks.rows] = lengths


@machine_code
def _find_blocks(
    kernel_ids: Any, rows: Any, first_block: Any, lengths: Any, size: int, ratio: int
) -> Any:
    width = 1
    for i, length in enumerate(lengths):
        width = max(width, -(-length // size) - first_block[i])
    ids = np.empty((len(rows), width), np.int32)
    last_block = kernel_ids.shape[1] // ratio - 1
    for i, row in enumerate(rows):
        for place in range(width):
            ids[i, place] = (
                kernel_ids[row, min(first_block[i] + place, last_block) * ratio] // ratio
            )
    return ids, first_block


def keeping_every_position(spec: Any) -> Any:
    """vLLM's spec of an attention layer's KV, without a window or chunk behind which it is freed.

    Raises `ValueError` for a layer that keeps something else than the KV of each position.
    """
    if isinstance(spec, compat.FullAttentionSpec):
        return spec
    if type(spec) not in (compat.SlidingWindowSpec, compat.ChunkedLocalAttentionSpec):
        raise ValueError(f"a draft model's layer cannot keep {type(spec).__name__}")
    names = {field.name for field in fields(spec)} - {"sliding_window", "attention_chunk_size"}
    common_names = names & {field.name for field in fields(compat.FullAttentionSpec)}
    return compat.FullAttentionSpec(**{name: getattr(spec, name) for name in common_names})
