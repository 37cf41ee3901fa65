"""The ledger of valid draft KV, compared with a model that stores every position."""

import numpy as np
import pytest

from engine_adapter.vllm_engine.worker.drafting.kv_ledger import (
    BlockEnds,
    BlockSlice,
    DraftKVLedger,
    HeadKVLedger,
)

SIZE = 4


class PositionModel:
    """For each block the set of valid slots, for which the ledger stores one number."""

    def __init__(self, num_blocks: int) -> None:
        self.valid: list[set[int]] = [set() for _ in range(num_blocks)]

    def reset(self, block_ids: list[int]) -> None:
        for block in block_ids:
            self.valid[block] = set()

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        valid = {source: set(self.valid[source]) for source, _ in pairs}
        for source, destination in pairs:
            self.valid[destination] = valid[source]

    def first_missing(self, blocks: list[int], length: int) -> int:
        for position in range(length):
            if position % SIZE not in self.valid[blocks[position // SIZE]]:
                return position
        return length

    def write(self, blocks: list[int], start: int, stop: int) -> None:
        for position in range(start, stop):
            self.valid[blocks[position // SIZE]].add(position % SIZE)


def table(rows: list[list[int]], width: int, junk: int = 0) -> BlockSlice:
    """All blocks of some rows: of one width, with any id after a row's."""
    padded = np.full((len(rows), width), junk, np.int32)
    for i, blocks in enumerate(rows):
        padded[i, : len(blocks)] = blocks
    return BlockSlice(padded, np.zeros(len(rows), np.int64))


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class RandomWalk:
    """Rows that start, grow and end at random, in a ledger and in the model."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.ledger, self.model = DraftKVLedger(40, SIZE), PositionModel(40)
        self.free = list(range(1, 40))
        self.rows: dict[int, tuple[list[int], int]] = {}
        """Row -> its blocks and its length."""
        self.shared: list[int] = []
        """Full blocks of the prefix cache."""

    def act(self, step: int) -> None:
        """One random change of one row, or none."""
        action = self.rng.random()
        if action < 0.15 and len(self.rows) < 4:
            self.start(step)
        elif action < 0.25 and self.rows:
            self.end(self.any_row())
        elif action < 0.32 and self.rows and self.free:
            self.move_last_block(self.any_row())
        elif action < 0.7 and self.rows:
            row = self.any_row()
            if len(self.free) > 3:
                self.grow(row, int(self.rng.integers(1, 7)))

    def any_row(self) -> int:
        return int(self.rng.choice(list(self.rows)))

    def start(self, row: int) -> None:
        """A prefix hit: the row's first full blocks are another row's, whether valid or not."""
        hit = self.shared[: int(self.rng.integers(0, len(self.shared) + 1))]
        self.rows[row] = (list(hit), len(hit) * SIZE)
        self.grow(row, int(self.rng.integers(1, 8)))

    def grow(self, row: int, more: int) -> None:
        """Makes the row longer; the blocks that are allocated for it are empty."""
        blocks, length = self.rows[row]
        length += more
        fresh = [self.free.pop() for _ in range(len(blocks), -(-length // SIZE))]
        self.ledger.reset(fresh)
        self.model.reset(fresh)
        self.rows[row] = (blocks + fresh, length)

    def end(self, row: int) -> None:
        """Frees the row's blocks; its first two, if full, are shared from now on."""
        blocks, length = self.rows.pop(row)
        if not self.shared and length >= 2 * SIZE:
            self.shared = blocks[:2]
        self.free.extend(block for block in blocks if block not in self.shared)

    def move_last_block(self, row: int) -> None:
        """Copy on write."""
        blocks, length = self.rows[row]
        last, moved = blocks[-1], self.free.pop()
        self.ledger.copy([(last, moved)])
        self.model.copy([(last, moved)])
        if last not in self.shared:
            self.free.append(last)
        self.rows[row] = ([*blocks[:-1], moved], length)

    def compare(self, rows: list[int]) -> tuple[BlockSlice, np.ndarray, np.ndarray]:
        """Checks the first missing positions; returns table, first missing positions and ends."""
        blocks = table([self.rows[row][0] for row in rows], 40, int(self.rng.integers(0, 40)))
        ends = lengths(*(self.rows[row][1] for row in rows))
        missing = self.ledger.first_missing(blocks, ends)
        assert missing.tolist() == [self.model.first_missing(*self.rows[row]) for row in rows]
        return blocks, missing, ends

    def catch_up(self, rows: list[int]) -> None:
        """Computes the rows' missing KV, which becomes valid."""
        blocks, missing, ends = self.compare(rows)
        self.ledger.mark_valid(blocks, ends)
        for row, start in zip(rows, missing.tolist(), strict=True):
            self.model.write(self.rows[row][0], start, self.rows[row][1])


@pytest.mark.parametrize("seed", range(30))
def test_the_ledger_agrees_with_a_model_of_every_position(seed: int) -> None:
    """Rows grow, share full blocks, lose and regain blocks; some of them catch up."""
    walk = RandomWalk(seed)
    for step in range(120):
        walk.act(step)
        some = [row for row in walk.rows if walk.rng.random() < 0.5]
        if walk.rows:
            walk.compare(list(walk.rows))
        if some:
            walk.catch_up(some)


def test_a_new_ledger_misses_everything() -> None:
    missing = DraftKVLedger(8, SIZE).first_missing(table([[1, 2], [3]], 4), lengths(7, 2))
    assert missing.tolist() == [0, 0]


def test_a_row_without_tokens_misses_nothing() -> None:
    assert DraftKVLedger(8, SIZE).first_missing(table([[1]], 2), lengths(0)).tolist() == [0]


@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 3 * SIZE])
def test_marked_positions_are_not_missing(length: int) -> None:
    ledger, blocks = DraftKVLedger(8, SIZE), table([[5, 2, 7]], 3)
    ledger.mark_valid(blocks, lengths(length))
    assert ledger.first_missing(blocks, lengths(length)).tolist() == [length]
    if length < 3 * SIZE:
        assert ledger.first_missing(blocks, lengths(length + 1)).tolist() == [length]


def test_a_shared_prefix_is_marked_once_for_both_rows() -> None:
    ledger, blocks = DraftKVLedger(8, SIZE), table([[1, 2, 3], [1, 2, 4]], 3)
    ledger.mark_valid(table([[1, 2, 3]], 3), lengths(9))
    assert ledger.first_missing(blocks, lengths(9, 9)).tolist() == [9, 8]


def test_the_first_missing_position_may_be_in_the_middle() -> None:
    ledger, blocks = DraftKVLedger(8, SIZE), table([[1, 2, 3]], 3)
    ledger.mark_valid(blocks, lengths(12))
    ledger.reset([2])
    assert ledger.first_missing(blocks, lengths(12)).tolist() == [4]
    assert ledger.first_missing(blocks, lengths(4)).tolist() == [4]


def test_marking_does_not_change_the_blocks_after_it() -> None:
    ledger, blocks = DraftKVLedger(8, SIZE), table([[1, 2, 3], [4, 5, 6]], 3)
    ledger.mark_valid(table([[3]], 1), lengths(4))
    ledger.mark_valid(blocks, lengths(6, 12))
    assert ledger.first_missing(blocks, lengths(12, 12)).tolist() == [6, 12]
    assert ledger.first_missing(table([[3]], 1), lengths(4)).tolist() == [4]


def test_slots_after_the_stop_become_invalid() -> None:
    ledger, blocks = DraftKVLedger(8, SIZE), table([[1]], 1)
    ledger.mark_valid(blocks, lengths(4))
    ledger.mark_valid(blocks, lengths(2))
    assert ledger.first_missing(blocks, lengths(4)).tolist() == [2]


def test_a_copy_is_as_valid_as_its_source() -> None:
    ledger = DraftKVLedger(8, SIZE)
    ledger.mark_valid(table([[1]], 1), lengths(3))
    ledger.mark_valid(table([[2]], 1), lengths(4))
    ledger.copy([(1, 2), (3, 1)])
    assert ledger.first_missing(table([[2], [1]], 1), lengths(4, 4)).tolist() == [3, 0]


def test_the_width_and_padding_of_the_table_do_not_matter() -> None:
    ledger = DraftKVLedger(8, SIZE)
    for width in (2, 3, 9):
        ledger.reset(list(range(8)))
        ledger.mark_valid(table([[1, 2], [3]], width, junk=5), lengths(6, 3))
        missing = ledger.first_missing(table([[1, 2], [3]], width, junk=6), lengths(8, 4))
        assert missing.tolist() == [6, 3]
        assert ledger.first_missing(table([[5]], 1), lengths(1)).tolist() == [0]


def test_blocks_may_begin_in_the_middle_of_a_row() -> None:
    ledger = DraftKVLedger(8, SIZE)
    ledger.mark_valid(table([[1, 2, 3], [4, 5, 6]], 3), lengths(6, 12))
    later = BlockSlice(np.array([[2, 3], [6, 0]]), lengths(1, 2))
    assert ledger.first_missing(later, lengths(12, 12)).tolist() == [6, 12]
    ledger.mark_valid(later, lengths(9, 12))
    assert ledger.first_missing(table([[1, 2, 3]], 3), lengths(12)).tolist() == [9]


def test_an_end_is_anothers_if_it_was_written_with_another_token() -> None:
    ledger, tokens = HeadKVLedger(8, SIZE), np.array([[0, 1, 2, 3, 7], [0, 1, 2, 3, 9]], np.int32)

    def end_of(row: int) -> BlockEnds:
        return ledger.block_ends(table([[5]], 1), lengths(4), tokens, np.array([row]))

    assert not ledger.is_others(end_of(0)).any(), "no token was written"
    ledger.record(end_of(0))
    assert ledger.is_others(end_of(0)).tolist() == [False]
    assert ledger.is_others(end_of(1)).tolist() == [True]
    ledger.reset([5])
    assert not ledger.is_others(end_of(1)).any(), "the block was allocated again"
