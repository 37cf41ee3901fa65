"""Twins of the kernels that keep block tables, find the slots of a step's tokens and clear blocks.

The kernels are in vLLM's `v1/worker/gpu/block_table.py` and `buffer_utils.py`, and the last one in
`v1/worker/utils.py`. There are G groups of layers with a block table each, int32 [M, blocks] for M
requests. Kernels get the tables as addresses, uint64 [G], with the distances of their rows, int64
[G].
"""

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from engine_adapter.vllm_engine.cpu_kernels.compiled import compiled

Array = Any


def _as_pointer(_: Any, address: Any) -> Any:
    """The address of int32 elements as a pointer that `carray` takes."""

    def generate(_: Any, builder: ir.IRBuilder, __: Any, arguments: list[ir.Value]) -> ir.Value:
        return builder.inttoptr(arguments[0], cgutils.int32_t.as_pointer())

    return types.CPointer(types.int32)(address), generate


_pointer = intrinsic(_as_pointer)


def apply_write(
    output: torch.Tensor,
    output_stride: torch.Tensor | int,
    write_indices: torch.Tensor,
    write_starts: torch.Tensor,
    write_contents: torch.Tensor,
    write_cu_lens: torch.Tensor,
    write_group_ids: torch.Tensor | None,
    MULTI_GROUP: bool,
) -> None:
    """Writes W pieces of rows that were collected on the host. `_apply_write_kernel`.

    Args:
        output: int32, int64 or float32 [M] or [M, width], is written; of several groups, their
            tables' addresses.
        output_stride: the distance of two rows; of several groups, int64 [G].
        write_indices: int32 [W], the row of each piece.
        write_starts: int32 [W], the column of its first element.
        write_contents: of the type of the output, all pieces one after the other.
        write_cu_lens: int32 [W], where each piece ends in `write_contents`.
        write_group_ids: int32 [W], the group of each piece, if there are several.
        MULTI_GROUP: whether there are.
    """
    pieces = (write_indices, write_starts, write_contents, write_cu_lens)
    if MULTI_GROUP:
        _write_to_groups(output, output_stride, *pieces, write_group_ids)
    else:
        _write_to_rows(output.view(-1), output_stride, *pieces)


@compiled
def _write_to_rows(
    output: Array, stride: int, rows: Array, starts: Array, contents: Array, ends: Array
) -> None:
    begin = 0
    for piece in range(len(rows)):
        target = np.int64(rows[piece]) * stride + starts[piece]
        for i in range(ends[piece] - begin):
            output[target + i] = contents[begin + i]
        begin = ends[piece]


@compiled
def _write_to_groups(
    addresses: Array,
    strides: Array,
    rows: Array,
    starts: Array,
    contents: Array,
    ends: Array,
    groups: Array,
) -> None:
    begin = 0
    for piece in range(len(rows)):
        group = groups[piece]
        width = strides[group]
        table = carray(_pointer(addresses[group]), (rows[piece] + 1, width), np.int32)
        for i in range(ends[piece] - begin):
            table[rows[piece], starts[piece] + i] = contents[begin + i]
        begin = ends[piece]


@compiled
def gather_block_tables(
    grid: tuple[int, int],
    batch_idx_to_req_idx: Array,
    src_block_table_ptrs: Array,
    dst_block_table_ptrs: Array,
    block_table_strides: Array,
    num_blocks: Array,
    num_reqs: int,
    num_computed_tokens: Array = None,
    sliding_window_reach: Array = None,
    block_sizes: Array = None,
    MASK_SLIDING_WINDOW: bool = False,
) -> None:
    """Copies the rows of a step's requests out of the tables of all. `_gather_block_tables_kernel`.

    Args:
        grid: (G, rows to write): those behind the step's requests become 0.
        batch_idx_to_req_idx: int [R], the request of each row.
        src_block_table_ptrs, dst_block_table_ptrs, block_table_strides: see the module.
        num_blocks: int32 [G, M], how many of a row's blocks are copied; the others stay.
        num_reqs: R.
        num_computed_tokens: int32 [M]; since vLLM 0.33, as the two that follow.
        sliding_window_reach: int32 [G], how far back a group's layers read, 0 for all the way.
        block_sizes: int32 [G].
        MASK_SLIDING_WINDOW: whether blocks behind that reach become 0.
    """
    groups, rows = grid
    for group in range(groups):
        width = block_table_strides[group]
        target = carray(_pointer(dst_block_table_ptrs[group]), (rows, width), np.int32)
        target[num_reqs:rows] = 0
        everything = (num_blocks.shape[1], width)
        source = carray(_pointer(src_block_table_ptrs[group]), everything, np.int32)
        for row in range(min(num_reqs, rows)):
            request = batch_idx_to_req_idx[row]
            count, unread = num_blocks[group, request], 0
            if sliding_window_reach is not None:
                reach = sliding_window_reach[group]
                if MASK_SLIDING_WINDOW and reach > 0:
                    behind = max(num_computed_tokens[request] - reach, 0)
                    unread = min(behind // block_sizes[group], count)
            target[row, :unread] = 0
            target[row, unread:count] = source[request, unread:count]


def compute_slot_mappings(
    max_num_tokens: int,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    pos: torch.Tensor,
    block_table_ptrs: torch.Tensor,
    block_table_strides: torch.Tensor,
    block_sizes: torch.Tensor,
    slot_mapping_enabled: torch.Tensor,
    dcp_sharded: torch.Tensor,
    slot_mappings: torch.Tensor,
    cp_rank: int,
    CP_SIZE: int,
    CP_INTERLEAVE: int,
    PAD_ID: int,
) -> None:
    """Finds the slot of the KV cache of each token of a step. `_compute_slot_mappings_kernel`.

    Args:
        max_num_tokens: the width of `slot_mappings`.
        idx_mapping: int [R], the request of each row; -1 for one without blocks.
        query_start_loc: int32 [R + 1], where each row's tokens begin.
        pos: int64 [T], the tokens' positions.
        block_table_ptrs, block_table_strides: see the module.
        block_sizes: int32 [G].
        slot_mapping_enabled: bool [G], whether the group's layers need slots.
        dcp_sharded, cp_rank, CP_INTERLEAVE: of context parallelism.
        slot_mappings: int64 [G, `max_num_tokens`], is written; `PAD_ID` where a token has no slot.
        CP_SIZE: ranks of context parallelism, 1 on a CPU.
        PAD_ID: -1.
    """
    if CP_SIZE != 1:
        raise ValueError(f"CP_SIZE: context parallelism needs a GPU, got {CP_SIZE} ranks")
    _slots(
        *(max_num_tokens, idx_mapping, query_start_loc, pos, block_table_ptrs),
        *(block_table_strides, block_sizes, slot_mapping_enabled, slot_mappings, PAD_ID),
    )


@compiled
def _slots(
    width: int,
    requests: Array,
    starts: Array,
    positions: Array,
    addresses: Array,
    strides: Array,
    block_sizes: Array,
    enabled: Array,
    slots: Array,
    padding: int,
) -> None:
    rows = len(requests)
    for group in range(len(addresses)):
        size = block_sizes[group]
        slots[group, starts[rows] : width] = padding
        for row in range(rows):
            request = requests[row]
            if request < 0 or not enabled[group]:
                slots[group, starts[row] : starts[row + 1]] = padding
                continue
            shape = (request + 1, strides[group])
            table = carray(_pointer(addresses[group]), shape, np.int32)
            for token in range(starts[row], starts[row + 1]):
                block, offset = divmod(positions[token], size)
                slots[group, token] = np.int64(table[request, block]) * size + offset


@compiled
def zero_kv_blocks(
    seg_addrs: Array, seg_block_strides: Array, seg_page_sizes: Array, block_ids: Array
) -> None:
    """Fills blocks of the KV cache with zeros. `_zero_kv_blocks_kernel`.

    A segment is what a block has in one place of memory; its sizes are in elements of four bytes.

    Args:
        seg_addrs: uint64 [S], the address of each segment of block 0.
        seg_block_strides: int64 [S], the distance of two blocks.
        seg_page_sizes: int64 [S], how many elements are cleared.
        block_ids: int64 [N], the blocks.
    """
    for segment in range(len(seg_addrs)):
        for block in block_ids:
            begin = np.uint64(block * seg_block_strides[segment] * 4)
            address = _pointer(seg_addrs[segment] + begin)
            carray(address, seg_page_sizes[segment], np.int32)[:] = 0
