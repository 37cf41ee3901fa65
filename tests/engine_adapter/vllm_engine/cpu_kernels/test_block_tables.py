"""The twins of V2's kernels of block tables and staged writes, beside the kernels interpreted."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine import compat
from tests.engine_adapter.vllm_engine.support.interpreted import interpreted
from tests.engine_adapter.vllm_engine.support.kernel_pairs import same, with_twins
from tests.engine_adapter.vllm_engine.support.v2_steps import REQUESTS, WIDTH, random_step

pytestmark = pytest.mark.needs_vllm

BLOCK_SIZES = (4, 8, 16)
SEEDS = (*range(2), pytest.param(range(100, 300), marks=pytest.mark.prove))


def each_way(seed: int, groups: int) -> list[Any]:
    """Block tables with the same random blocks, with the interpreter and with the twins."""
    made = []
    for module in (interpreted, with_twins):
        generator = torch.Generator().manual_seed(seed)
        tables = module("block_table").BlockTables(
            block_sizes=list(BLOCK_SIZES[:groups]),
            max_num_reqs=REQUESTS,
            max_num_batched_tokens=64,
            max_num_blocks_per_group=[WIDTH // size + 3 for size in BLOCK_SIZES[:groups]],
            device=torch.device("cpu"),
            slot_mapping_enabled=[group != 1 for group in range(groups)],
        )
        for overwrite in (True, False):
            for request in range(REQUESTS):
                blocks = tuple(
                    torch.randint(
                        *(1, 9), (1 if not overwrite else WIDTH // size,), generator=generator
                    ).tolist()
                    for size in BLOCK_SIZES[:groups]
                )
                tables.append_block_ids(request, blocks, overwrite)
            tables.apply_staged_writes()
        tables.slot_mappings.fill_(7)
        for table in tables.input_block_tables:
            table.fill_(9)
        made.append(tables)
    return made


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_tables_rows_and_slots_are_vllms(seed: int | range, groups: int) -> None:
    for each in [seed] if isinstance(seed, int) else seed:
        theirs, ours = each_way(each, groups)
        same([table.gpu for table in ours.block_tables], [t.gpu for t in theirs.block_tables])
        step = random_step(each)
        padded_rows, padded_tokens = step.rows + each % 3, step.tokens + each % 4
        padded_rows = min(padded_rows, REQUESTS)
        same(
            ours.gather_block_tables(step.idx_mapping, padded_rows),
            theirs.gather_block_tables(step.idx_mapping, padded_rows),
        )
        same(ours.input_block_tables, theirs.input_block_tables)
        requests = step.idx_mapping.clone()
        requests[each % step.rows] = -1 if each % 2 else requests[each % step.rows]
        starts = torch.repeat_interleave(
            step.num_computed_tokens[step.idx_mapping.long()] - step.query_start_loc[:-1],
            step.query_start_loc.diff(),
        )
        positions = starts + torch.arange(step.tokens)
        arguments = (requests, step.query_start_loc, positions, padded_tokens)
        same(ours.compute_slot_mappings(*arguments), theirs.compute_slot_mappings(*arguments))
        same(ours.slot_mappings, theirs.slot_mappings)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("size", [5, (5, 11)], ids=["elements", "rows"])
def test_staged_writes_are_vllms(dtype: torch.dtype, size: int | tuple[int, int]) -> None:
    written = []
    for module in (interpreted, with_twins):
        tensor = module("buffer_utils").StagedWriteTensor(size, dtype, torch.device("cpu"))
        if isinstance(size, int):
            tensor.stage_write_elem(3, 12)
            tensor.stage_write_elem(0, 7)
        else:
            tensor.stage_write(4, 2, [1, 2, 3])
            tensor.stage_write(0, 0, [])
            tensor.stage_write(1, 10, [4])
            tensor.stage_write(4, 3, [5])  # over the first one
        tensor.apply_write()
        tensor.apply_write()  # nothing is left to write
        written.append(tensor.gpu)
    same(written[1], written[0])
    assert written[0].count_nonzero() > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_blocks_are_cleared_and_no_others(dtype: torch.dtype) -> None:
    """vLLM finds what a block has in each layer: two small blocks for one, and layers with gaps."""
    with_twins("block_table")
    layers: dict[str, torch.Tensor] = {
        "whole": torch.ones(7, 2, 4, 6, dtype=dtype),
        "halves": torch.ones(14, 2, 2, 6, dtype=dtype),
        "strided": torch.ones(7, 3, 2, 4, 6, dtype=dtype)[:, 1],
    }
    groups = []
    for group, name in enumerate(layers):
        spec = compat.FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=6, dtype=dtype)
        groups.append(
            SimpleNamespace(
                kv_cache_spec=spec,
                kv_cache_group_id=group,
                layer_names=[name],
                kernel_block_stride=None,
            )
        )
    context = {name: SimpleNamespace(kv_cache=kv) for name, kv in layers.items()}
    zeroer = compat.v2_worker_utils.KVBlockZeroer(
        torch.device("cpu"), groups, [4, 2, 4], context, 7
    )
    zeroer.zero_block_ids([2, 5])
    for layer in layers.values():
        blocks = layer.reshape(7, -1)
        assert not blocks[[2, 5]].any()
        assert blocks[[0, 1, 3, 4, 6]].all()
    beside = layers["strided"]._base
    assert beside is not None
    assert beside[:, [0, 2]].all()


def test_context_parallelism_is_refused() -> None:
    _, tables = each_way(0, 1)
    tables.cp_size = 2
    step = random_step(0)
    with pytest.raises(ValueError, match="context parallelism needs a GPU, got 2 ranks"):
        tables.compute_slot_mappings(
            step.idx_mapping, step.query_start_loc, torch.zeros(step.tokens).long(), step.tokens
        )
