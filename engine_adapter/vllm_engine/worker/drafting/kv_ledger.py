"""Which draft KV is valid: the ledgers that catch-up reads.

A draft model shares the target's KV blocks but writes its own layers' part of them only when it
runs. It misses positions while another proposer is active, in blocks of the prefix cache that were
filled while it was idle, and after a preemption, when the request gets new blocks. The ledger
records validity per physical block, so one rule covers all cases: compute the missing KV, then
draft.

A row's blocks are looked at from its first unsettled one on (`DraftKVGroups`), so a step takes as
long with long prompts as with short ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.machine_code import machine_code

Blocks = npt.NDArray[np.integer]
Lengths = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]


_NO_TOKEN = -1
"""Of a block whose last slot holds no KV of a head."""


@dataclass(frozen=True, slots=True)
class BlockSlice:
    """Blocks of R rows, of each from one place of its block table on.

    Attributes:
        ids: int [R, W], in order; any id after the row's end.
        first: int64 [R], the place of each row's first one.
    """

    ids: Blocks
    first: Lengths

    def select(self, rows: npt.NDArray[np.intp]) -> "BlockSlice":
        """Those of some rows, int [N]."""
        return BlockSlice(self.ids[rows], self.first[rows])


_NO_LENGTHS: Lengths = np.zeros(0, np.int64)
_NO_BLOCKS = BlockSlice(np.zeros((0, 1), np.int32), _NO_LENGTHS)


class DraftKVLedger:
    """For each KV block, how many of its leading slots hold valid draft KV.

    Args:
        num_blocks: physical blocks of the KV cache.
        block_size: tokens per block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._valid = np.zeros(num_blocks, np.int32)
        # Their code is compiled here, and not in the first step.
        self.first_missing(_NO_BLOCKS, _NO_LENGTHS)
        self.mark_valid(_NO_BLOCKS, _NO_LENGTHS)

    def reset(self, block_ids: Sequence[int]) -> None:
        """Marks blocks that were allocated again as empty."""
        self._valid[list(block_ids)] = 0

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Follows copies of blocks, each pair being (source, destination)."""
        source, destination = np.asarray(pairs, np.intp).T
        self._valid[destination] = self._valid[source]

    def first_missing(self, blocks: BlockSlice, lengths: Lengths) -> Lengths:
        """The first position of each row whose draft KV is missing.

        Args:
            blocks: of R rows; no KV is missing before them.
            lengths: int64 [R], the number of positions to check.

        Returns:
            int64 [R], in [0, lengths[i]]; `lengths[i]` if nothing is missing.
        """
        missing = lengths.copy()
        _find_missing(self._valid, blocks.ids, blocks.first, lengths, self.block_size, missing)
        return missing

    def mark_valid(self, blocks: BlockSlice, lengths: Lengths) -> None:
        """Marks each row's positions up to `lengths` in these blocks: all of them hold KV now.

        Shapes are those of `first_missing`. Slots of these blocks after them become invalid.
        """
        _mark_valid(self._valid, blocks.ids, blocks.first, lengths, self.block_size)


@dataclass(frozen=True, slots=True)
class BlockEnds:
    """The last slots of the blocks that rows fill; four arrays [E].

    Attributes:
        row: int, index into the rows.
        block: int, the block's id.
        position: int64, of the block's last slot.
        token: int32, the row's token at the next position.
    """

    row: npt.NDArray[np.intp]
    block: Blocks
    position: Lengths
    token: Tokens


class HeadKVLedger(DraftKVLedger):
    """For a head, whose KV of a position depends on the token at the next position too.

    The last slot of a block therefore depends on the token after the block, which is not part of
    the key by which the prefix cache finds the block. Rows that share the block and continue with
    different tokens rewrite that slot in turn.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._next_token = np.full(num_blocks, _NO_TOKEN, np.int32)
        self._claim = np.zeros(num_blocks, np.int32)
        no_tokens = np.zeros((1, 1), np.int32)
        no_tokens.flags.writeable = False  # as those of a batch
        self.block_ends(_NO_BLOCKS, _NO_LENGTHS, no_tokens, _NO_LENGTHS)

    def reset(self, block_ids: Sequence[int]) -> None:
        """See `DraftKVLedger.reset`."""
        super().reset(block_ids)
        self._next_token[list(block_ids)] = _NO_TOKEN

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `DraftKVLedger.copy`."""
        super().copy(pairs)
        source, destination = np.asarray(pairs, np.intp).T
        self._next_token[destination] = self._next_token[source]

    def block_ends(
        self, blocks: BlockSlice, lengths: Lengths, tokens: Tokens, rows: Blocks
    ) -> BlockEnds:
        """The ends of those blocks that the rows fill.

        Args:
            blocks, lengths: see `first_missing`.
            tokens: int32 [B, N], token ids; the i-th row's are `tokens[rows[i]]`, valid in
                [0, lengths[i]].
            rows: int [R].
        """
        return BlockEnds(
            *_find_ends(blocks.ids, blocks.first, lengths, tokens, rows, self.block_size)
        )

    def must_wait(self, ends: BlockEnds, num_rows: int) -> npt.NDArray[np.bool_]:
        """Rows that must wait because another row needs a shared slot with another token.

        Of the rows that conflict over one slot, one does not wait.

        Returns:
            bool [R].
        """
        self._claim[ends.block] = ends.token
        waits = np.zeros(num_rows, np.bool_)
        waits[ends.row[self._claim[ends.block] != ends.token]] = True
        return waits

    def is_stale(self, ends: BlockEnds) -> npt.NDArray[np.bool_]:
        """The ends that were not written with the token of these rows: bool [E]."""
        return self._next_token[ends.block] != ends.token

    def is_others(self, ends: BlockEnds) -> npt.NDArray[np.bool_]:
        """The ends that were written with another token, by a row that shares them: bool [E]."""
        token = self._next_token[ends.block]
        return (token != ends.token) & (token != _NO_TOKEN)

    def record(self, ends: BlockEnds) -> None:
        """Notes that the ends are written with the tokens of these rows."""
        self._next_token[ends.block] = ends.token


@machine_code
def _find_missing(
    valid: Any, ids: Any, first_block: Any, lengths: Any, size: int, missing: Any
) -> None:
    for row, length in enumerate(lengths):
        for place, block in enumerate(ids[row]):
            begin = (first_block[row] + place) * size
            if valid[block] < min(length - begin, size):
                missing[row] = begin + valid[block]
                break


@machine_code
def _mark_valid(valid: Any, ids: Any, first_block: Any, lengths: Any, size: int) -> None:
    for row, length in enumerate(lengths):
        for place, block in enumerate(ids[row]):
            required = min(length - (first_block[row] + place) * size, size)
            if required > 0:
                valid[block] = required


@machine_code
def _find_ends(ids: Any, first_block: Any, lengths: Any, tokens: Any, rows: Any, size: int) -> Any:
    begins, width = first_block * size, ids.shape[1]
    counts = np.minimum(np.maximum((lengths - begins) // size, 0), width)
    total = counts.sum()
    row_of, block = np.empty(total, np.int64), np.empty(total, np.int32)
    position, token = np.empty(total, np.int64), np.empty(total, np.int32)
    end = 0
    for row, count in enumerate(counts):
        for place in range(count):
            stop = begins[row] + (place + 1) * size
            row_of[end], block[end], position[end] = row, ids[row, place], stop - 1
            token[end] = tokens[rows[row], stop]
            end += 1
    return row_of, block, position, token
