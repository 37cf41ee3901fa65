"""The KV cache groups that hold a draft model's layers.

vLLM puts layers into groups, each with a block table of its own, if some of the engine's layers
keep other tokens than others (sliding windows, recurrent states). All groups take their blocks from
one pool. A position's draft KV is valid if it is valid in every group of the draft model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.kv_ledger import Blocks, DraftKVLedger, Lengths

GroupBlocks = Mapping[int, Blocks]
"""KV cache group -> the rows' block ids, each int [R, W]."""


Ledger = TypeVar("Ledger", bound=DraftKVLedger)


class DraftKVGroups(Generic[Ledger]):
    """One ledger for each group of a draft model's layers.

    Args:
        block_sizes: group -> tokens per block.
        num_blocks: blocks of the pool.
        new_ledger: makes a ledger from the number of blocks and the tokens per block.

    Attributes:
        ledgers: group -> its ledger.
    """

    def __init__(
        self,
        block_sizes: Mapping[int, int],
        num_blocks: int,
        new_ledger: Callable[[int, int], Ledger],
    ) -> None:
        self.ledgers = {gid: new_ledger(num_blocks, size) for gid, size in block_sizes.items()}

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

    def blocks(self, tables: Any, rows: npt.NDArray[np.intp], length: int) -> GroupBlocks:
        """The KV manager's ids of the rows' blocks for `length` positions.

        vLLM's tables have the ids of kernel blocks; a block consists of one or more of them.

        Args:
            tables: vLLM's block tables of the batch, by group.
            rows: int [R].
        """
        blocks = {}
        for gid, ledger in self.ledgers.items():
            table = tables[gid]
            ratio = ledger.block_size // table.block_size
            width = -(-length // ledger.block_size) * ratio
            ids: Blocks = table.get_numpy_array()[rows, :width]
            blocks[gid] = ids if ratio == 1 else ids[:, ::ratio] // ratio
        return blocks

    def first_missing(self, blocks: GroupBlocks, lengths: Lengths) -> Lengths:
        """The first position of each row whose KV is missing in any group.

        See `DraftKVLedger.first_missing`.
        """
        missing = lengths
        for gid, ledger in self.ledgers.items():
            missing = np.minimum(missing, ledger.first_missing(blocks[gid], lengths))
        return missing

    def mark_valid(self, blocks: GroupBlocks, lengths: Lengths) -> None:
        """See `DraftKVLedger.mark_valid`."""
        for gid, ledger in self.ledgers.items():
            ledger.mark_valid(blocks[gid], lengths)


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
