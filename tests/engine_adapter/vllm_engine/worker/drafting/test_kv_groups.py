"""A draft model in several KV cache groups: the rule of validity, and wrong rules."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.seam.types import PLAIN, SpecMethod
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.kv_groups import (
    DraftKVGroups,
    GroupBlocks,
    keeping_every_position,
)
from engine_adapter.vllm_engine.worker.drafting.kv_ledger import BlockSlice, DraftKVLedger
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.support.overlooking import overlook_a_block, overlook_nothing


def lengths(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def blocks_of(row: int, by_group: dict[int, list[int]]) -> GroupBlocks:
    """All blocks of one row of the engine's batch."""
    by_id = {gid: BlockSlice(np.array([ids]), lengths(0)) for gid, ids in by_group.items()}
    return GroupBlocks(np.array([row]), by_id)


ONE_ROW = blocks_of(0, {0: [1, 2, 3, 4], 2: [5, 6]})


def table(block_size: int, ids: list[list[int]]) -> Any:
    """vLLM's, of the blocks of all rows."""
    blocks = np.array(ids, np.int32)
    return SimpleNamespace(block_size=block_size, get_numpy_array=lambda: blocks)


@pytest.fixture
def groups() -> DraftKVGroups[DraftKVLedger]:
    """The groups 0 and 2 of an engine, with 4 and 8 tokens per block."""
    new_groups = DraftKVGroups({0: 4, 2: 8}, 10, 3, DraftKVLedger)
    new_groups.mark_valid(ONE_ROW, lengths(14))
    return new_groups


def test_a_position_is_valid_if_it_is_valid_in_every_group(
    groups: DraftKVGroups[DraftKVLedger],
) -> None:
    assert groups.first_missing(ONE_ROW, lengths(16)).tolist() == [14]
    groups.blocks_changed([[], [], [6]], [])
    assert groups.first_missing(ONE_ROW, lengths(16)).tolist() == [8]
    groups.blocks_changed([[1], [], []], [])
    assert groups.first_missing(ONE_ROW, lengths(16)).tolist() == [0]


def test_a_block_that_a_group_without_draft_layers_allocates_is_not_reset(
    groups: DraftKVGroups[DraftKVLedger],
) -> None:
    """The block is reset when a group with draft layers allocates it."""
    groups.blocks_changed([[], [1], []], [])
    assert groups.first_missing(ONE_ROW, lengths(14)).tolist() == [14]


def test_copies_are_followed_in_every_group(groups: DraftKVGroups[DraftKVLedger]) -> None:
    groups.blocks_changed([[], [], []], [(4, 7), (6, 8)])
    moved = blocks_of(0, {0: [1, 2, 3, 7], 2: [5, 8]})
    assert groups.first_missing(moved, lengths(16)).tolist() == [14]


def test_blocks_are_those_of_each_groups_own_table() -> None:
    groups = DraftKVGroups({0: 4, 1: 8}, 10, 2, DraftKVLedger)
    tables = [table(2, [[2, 3, 8, 9, 4, 5], [0, 1, 6, 7, 2, 3]]), table(8, [[7, 8], [9, 1]])]
    blocks = groups.blocks(tables, np.array([1, 0]), lengths(8, 5))
    assert blocks[0].ids.tolist() == [[0, 3], [1, 4]]
    assert blocks[1].ids.tolist() == [[9], [7]]


# -- settled positions -----------------------------------------------------------------------


def test_only_the_blocks_after_the_settled_positions_are_looked_at() -> None:
    groups = DraftKVGroups({0: 4}, 20, 2, DraftKVLedger)
    tables, rows = [table(4, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])], np.array([0, 1])
    groups.mark_valid(groups.blocks(tables, rows, lengths(9, 4)), lengths(9, 4))
    blocks = groups.blocks(tables, rows, lengths(11, 6))
    assert blocks[0].ids.tolist() == [[3], [7]], "one block a row, of however many"
    assert groups.first_missing(blocks, lengths(11, 6)).tolist() == [9, 4]
    groups.mark_valid(blocks, lengths(11, 6))
    blocks = groups.blocks(tables, rows, lengths(20, 7))
    assert groups.first_missing(blocks, lengths(20, 7)).tolist() == [11, 6]


def test_a_row_of_another_request_is_looked_at_from_its_first_block_on() -> None:
    groups = DraftKVGroups({0: 4}, 20, 2, DraftKVLedger)
    rows = np.array([0, 1])
    groups.mark_valid(
        groups.blocks([table(4, [[1, 2], [3, 4]])], rows, lengths(8, 8)), lengths(8, 8)
    )
    groups.unsettle([1])
    blocks = groups.blocks([table(4, [[1, 2], [1, 5]])], rows, lengths(8, 8))
    assert groups.first_missing(blocks, lengths(8, 8)).tolist() == [8, 4]


@pytest.mark.needs_vllm
@pytest.mark.parametrize("early", proved_beyond([False], [False, True]))
@pytest.mark.parametrize("who", ["ended", "shared"])
def test_a_rule_that_keeps_rows_settled_is_caught(
    monkeypatch: pytest.MonkeyPatch, who: str, early: bool
) -> None:
    """Those of requests that end, and those that share a block which another row changes."""
    unsettle = DraftKVGroups.unsettle

    def keep(self: Any, rows: Any) -> None:
        if isinstance(rows, slice) != (who == "shared"):
            unsettle(self, rows)

    def run_seeds() -> None:
        for seed in range(4):
            run_random(monkeypatch, "HEADS", early=early, seed=seed)

    monkeypatch.setattr(DraftKVGroups, "unsettle", keep)
    with pytest.raises(AssertionError):
        run_seeds()


# -- wrong rules -----------------------------------------------------------------------------


def run_random(
    monkeypatch: pytest.MonkeyPatch, proposers: str, *, early: bool = False, seed: int = 7
) -> None:
    paged = import_module("tests.engine_adapter.vllm_engine.support.paged_world")
    world = paged.World(
        monkeypatch,
        proposers=getattr(paged, proposers),
        num_blocks=90,
        other_groups=(8, 2),
        early=early,
    )
    world.run_random([SpecMethod("twin", 4), SpecMethod("stranger", 3), PLAIN], seed)


every_kind = pytest.mark.parametrize("proposers", ["PROPOSERS", "HEADS"])


@pytest.mark.needs_vllm
@every_kind
def test_a_rule_that_overlooks_a_block_is_caught(
    monkeypatch: pytest.MonkeyPatch, proposers: str
) -> None:
    overlook_a_block()
    try:
        with pytest.raises(AssertionError):
            run_random(monkeypatch, proposers)
    finally:
        overlook_nothing()


@pytest.mark.needs_vllm
@every_kind
def test_a_rule_that_overlooks_new_blocks_is_caught(
    monkeypatch: pytest.MonkeyPatch, proposers: str
) -> None:
    follow = DraftKVGroups.blocks_changed

    def changed(self: Any, fresh: Any, copies: Any) -> None:
        follow(self, [[] for _ in fresh], copies)

    monkeypatch.setattr(DraftKVGroups, "blocks_changed", changed)
    with pytest.raises(AssertionError):
        run_random(monkeypatch, proposers)


# -- what a draft model's layers keep --------------------------------------------------------


@pytest.mark.needs_vllm
def test_a_layer_with_a_window_or_chunks_keeps_every_position() -> None:
    spec = {"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
    full = compat.FullAttentionSpec(**spec)
    assert keeping_every_position(full) is full
    for local in (
        compat.SlidingWindowSpec(**spec, sliding_window=48),
        compat.ChunkedLocalAttentionSpec(**spec, attention_chunk_size=64),
    ):
        assert keeping_every_position(local) == full, "so vLLM can put them into one group"


@pytest.mark.needs_vllm
def test_a_layer_that_keeps_no_kv_of_each_position_is_an_error() -> None:
    class MambaSpec: ...

    with pytest.raises(ValueError, match="MambaSpec"):
        keeping_every_position(MambaSpec())
