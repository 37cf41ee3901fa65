"""Which KV of a draft model is valid: the book-keeping behind every catch-up.

A draft model shares the target's KV blocks but writes its own layers' part of them only when it
runs. Whatever it missed (another proposer was active, the prefix cache gave blocks that were
filled while it was idle, a preemption gave the request new ones) is found here, per physical
block, so that one rule covers all cases: read what is missing, then draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.integer]
Lengths = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]


class DraftKVLedger:
    """For each KV block, how many of its leading slots hold valid draft KV.

    Args:
        num_blocks: physical blocks of the KV cache.
        block_size: tokens per block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._valid = np.zeros(num_blocks, np.int32)

    def reset(self, block_ids: Sequence[int]) -> None:
        """The blocks were handed out anew: nothing in them is valid."""
        self._valid[list(block_ids)] = 0

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Block contents were copied, each pair being (source, destination)."""
        source, destination = np.asarray(pairs, np.intp).T
        self._valid[destination] = self._valid[source]

    def first_missing(self, blocks: Blocks, lengths: Lengths) -> Lengths:
        """The first position of each row whose draft KV is missing.

        Args:
            blocks: int [R, W], each row's block ids in order; past its length anything.
            lengths: int64 [R], how far to look.

        Returns:
            int64 [R], in [0, lengths[i]]; `lengths[i]` if nothing is missing.
        """
        valid, need = self._valid[blocks], self._need(blocks.shape[1], lengths)
        short = valid < need
        first = short.argmax(axis=1)
        rows = np.arange(len(blocks))
        missing = first * self.block_size + valid[rows, first]
        return np.where(short[rows, first], missing, lengths)

    def mark(self, blocks: Blocks, start: Lengths, stop: Lengths) -> None:
        """The positions [start, stop) of each row were written, and those before were valid.

        Shapes are those of `first_missing`. What a block held behind `stop` is forgotten.
        """
        first = start // self.block_size
        touched = np.arange(blocks.shape[1]) >= first[:, None]
        need = self._need(blocks.shape[1], stop)
        touched &= need > 0
        self._valid[blocks[touched]] = need[touched]

    def _need(self, width: int, lengths: Lengths) -> Lengths:
        """Valid slots that each block of each row must hold to cover `lengths`: [R, W]."""
        begins = np.arange(0, width * self.block_size, self.block_size)
        # np.clip takes twice as long for so few.
        return np.minimum(np.maximum(lengths[:, None] - begins, 0), self.block_size)


@dataclass(frozen=True, slots=True)
class BlockEnds:
    """Where rows fill a block to its end; four arrays [E].

    Attributes:
        row: int, index into the rows.
        block: int, the block's id.
        position: int64, of its last slot.
        token: int32, the row's token at the position behind it.
    """

    row: npt.NDArray[np.intp]
    block: Blocks
    position: Lengths
    token: Tokens


class HeadKVLedger(DraftKVLedger):
    """For a head, whose KV of a position holds the next position's token too.

    So the last slot of a block hangs on the token behind the block, which is not among those by
    which the prefix cache finds the block. Rows that share it and go on with different tokens
    rewrite that one slot in turn.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._next_token = np.full(num_blocks, -1, np.int32)
        self._claim = np.zeros(num_blocks, np.int32)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `DraftKVLedger.copy`."""
        super().copy(pairs)
        source, destination = np.asarray(pairs, np.intp).T
        self._next_token[destination] = self._next_token[source]

    def ends(self, blocks: Blocks, lengths: Lengths, tokens: Tokens, rows: Blocks) -> BlockEnds:
        """The blocks that the rows fill.

        Args:
            blocks, lengths: see `first_missing`.
            tokens: int32 [B, N], token ids; the i-th row's are `tokens[rows[i]]`, valid in
                [0, lengths[i]].
            rows: int [R].
        """
        stops = np.arange(1, lengths.max(initial=0) // self.block_size + 1) * self.block_size
        row, i = np.nonzero(stops <= lengths[:, None])
        return BlockEnds(row, blocks[row, i], stops[i] - 1, tokens[rows[row], stops[i]])

    def contested(self, ends: BlockEnds, num_rows: int) -> npt.NDArray[np.bool_]:
        """Which rows must wait, as another one needs a slot of theirs otherwise: bool [R].

        Of the rows that need one slot differently one need not wait.
        """
        self._claim[ends.block] = ends.token
        waits = np.zeros(num_rows, np.bool_)
        waits[ends.row[self._claim[ends.block] != ends.token]] = True
        return waits

    def rewritten(self, ends: BlockEnds) -> npt.NDArray[np.bool_]:
        """Which ends hold another token than these rows', if they hold any: bool [E]."""
        return self._next_token[ends.block] != ends.token

    def note(self, ends: BlockEnds) -> None:
        """The ends hold the tokens of these rows."""
        self._next_token[ends.block] = ends.token
