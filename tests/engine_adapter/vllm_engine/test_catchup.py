"""The ledger of valid draft KV, against a model that remembers every single position."""

import numpy as np
import pytest

from engine_adapter.vllm_engine.catchup import DraftKVLedger

SIZE = 4


class PositionModel:
    """For each block the set of valid slots; what the ledger keeps as one number."""

    def __init__(self, num_blocks: int) -> None:
        self.valid: list[set[int]] = [set() for _ in range(num_blocks)]

    def reset(self, block_ids: list[int]) -> None:
        for block in block_ids:
            self.valid[block] = set()

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        held = {source: set(self.valid[source]) for source, _ in pairs}
        for source, destination in pairs:
            self.valid[destination] = held[source]

    def first_missing(self, blocks: list[int], length: int) -> int:
        for position in range(length):
            if position % SIZE not in self.valid[blocks[position // SIZE]]:
                return position
        return length

    def write(self, blocks: list[int], start: int, stop: int) -> None:
        for position in range(start, stop):
            self.valid[blocks[position // SIZE]].add(position % SIZE)


def table(rows: list[list[int]], width: int, junk: int = 0) -> np.ndarray:
    """Block tables as vLLM keeps them: rows of one width, anything behind a row's blocks."""
    padded = np.full((len(rows), width), junk, np.int32)
    for i, blocks in enumerate(rows):
        padded[i, : len(blocks)] = blocks
    return padded


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("seed", range(30))
def test_the_ledger_agrees_with_a_model_of_every_position(seed: int) -> None:
    """Rows grow, share full blocks, lose and regain blocks; some are read and some are not."""
    rng = np.random.default_rng(seed)
    ledger, model = DraftKVLedger(40, SIZE), PositionModel(40)
    free = list(range(1, 40))
    rows: dict[int, tuple[list[int], int]] = {}
    shared: list[int] = []

    def grow(row: int, length: int) -> None:
        """Gives the row blocks up to `length`; fresh ones hold nothing."""
        blocks, _ = rows.get(row, ([], 0))
        fresh = [free.pop() for _ in range(len(blocks), -(-length // SIZE))]
        ledger.reset(fresh)
        model.reset(fresh)
        rows[row] = (blocks + fresh, length)

    def drop(row: int) -> None:
        blocks, _ = rows.pop(row)
        free.extend(block for block in blocks if block not in shared)

    for step in range(120):
        action = rng.random()
        if action < 0.15 and len(rows) < 4:
            row = step
            # A prefix hit: the first full blocks are another row's, valid or not.
            hit = shared[: int(rng.integers(0, len(shared) + 1))]
            rows[row] = (list(hit), len(hit) * SIZE)
            grow(row, len(hit) * SIZE + int(rng.integers(1, 8)))
        elif action < 0.25 and rows:
            row = int(rng.choice(list(rows)))
            if not shared and rows[row][1] >= 2 * SIZE:
                shared = rows[row][0][:2]  # full blocks, from now on in the prefix cache
            drop(row)
        elif action < 0.32 and rows and free:
            # Copy on write: the row's last block moves.
            row = int(rng.choice(list(rows)))
            blocks, length = rows[row]
            pairs = [(blocks[-1], free.pop())]
            ledger.copy(pairs)
            model.copy(pairs)
            if blocks[-1] not in shared:
                free.append(blocks[-1])
            rows[row] = ([*blocks[:-1], pairs[0][1]], length)
        elif action < 0.7 and rows:
            row = int(rng.choice(list(rows)))
            if len(free) > 3:
                grow(row, rows[row][1] + int(rng.integers(1, 7)))
        if not rows:
            continue
        read = [row for row in rows if rng.random() < 0.5]
        for chosen in (list(rows), read):
            if not chosen:
                continue
            junk = int(rng.integers(0, 40))
            blocks = table([rows[row][0] for row in chosen], 40, junk)
            ends = lengths(*(rows[row][1] for row in chosen))
            missing = ledger.first_missing(blocks, ends)
            expected = [model.first_missing(*rows[row]) for row in chosen]
            assert missing.tolist() == expected
        if read:
            ledger.mark(blocks, missing, ends)
            for row, start in zip(read, expected, strict=True):
                model.write(rows[row][0], start, rows[row][1])


def test_a_new_ledger_misses_everything() -> None:
    missing = DraftKVLedger(8, SIZE).first_missing(table([[1, 2], [3]], 4), lengths(7, 2))
    assert missing.tolist() == [0, 0]


def test_a_row_without_tokens_misses_nothing() -> None:
    assert DraftKVLedger(8, SIZE).first_missing(table([[1]], 2), lengths(0)).tolist() == [0]


@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 3 * SIZE])
def test_what_was_marked_is_missed_no_more(length: int) -> None:
    ledger, blocks = DraftKVLedger(8, SIZE), table([[5, 2, 7]], 3)
    ledger.mark(blocks, lengths(0), lengths(length))
    assert ledger.first_missing(blocks, lengths(length)).tolist() == [length]
    if length < 3 * SIZE:
        assert ledger.first_missing(blocks, lengths(length + 1)).tolist() == [length]


def test_rows_of_a_shared_prefix_are_read_by_one_for_both() -> None:
    ledger, blocks = DraftKVLedger(8, SIZE), table([[1, 2, 3], [1, 2, 4]], 3)
    ledger.mark(blocks[:1], lengths(0), lengths(9))
    assert ledger.first_missing(blocks, lengths(9, 9)).tolist() == [9, 8]


def test_a_hole_in_the_middle_is_where_reading_starts() -> None:
    ledger, blocks = DraftKVLedger(8, SIZE), table([[1, 2, 3]], 3)
    ledger.mark(blocks, lengths(0), lengths(12))
    ledger.reset([2])
    assert ledger.first_missing(blocks, lengths(12)).tolist() == [4]
    assert ledger.first_missing(blocks, lengths(4)).tolist() == [4]


def test_marking_leaves_blocks_before_the_start_and_behind_the_stop_alone() -> None:
    ledger, blocks = DraftKVLedger(8, SIZE), table([[1, 2, 3]], 3)
    ledger.mark(table([[3]], 1), lengths(0), lengths(4))
    ledger.mark(blocks, lengths(0), lengths(2))
    ledger.mark(blocks, lengths(4), lengths(8))
    # Block 1 keeps its two slots, block 2 is full, block 3 was not touched.
    assert ledger.first_missing(blocks, lengths(12)).tolist() == [2]
    ledger.mark(blocks, lengths(2), lengths(4))
    assert ledger.first_missing(blocks, lengths(8)).tolist() == [8]
    assert ledger.first_missing(table([[3]], 1), lengths(4)).tolist() == [4]


def test_slots_behind_the_stop_are_forgotten() -> None:
    ledger, blocks = DraftKVLedger(8, SIZE), table([[1]], 1)
    ledger.mark(blocks, lengths(0), lengths(4))
    ledger.mark(blocks, lengths(1), lengths(2))
    assert ledger.first_missing(blocks, lengths(4)).tolist() == [2]


def test_a_copy_is_as_valid_as_its_source() -> None:
    ledger = DraftKVLedger(8, SIZE)
    ledger.mark(table([[1]], 1), lengths(0), lengths(3))
    ledger.mark(table([[2]], 1), lengths(0), lengths(4))
    ledger.copy([(1, 2), (3, 1)])
    assert ledger.first_missing(table([[2], [1]], 1), lengths(4, 4)).tolist() == [3, 0]


def test_the_width_of_the_table_and_what_pads_it_do_not_matter() -> None:
    ledger = DraftKVLedger(8, SIZE)
    for width in (2, 3, 9):
        ledger.reset(list(range(8)))
        ledger.mark(table([[1, 2], [3]], width, junk=5), lengths(0, 0), lengths(6, 3))
        missing = ledger.first_missing(table([[1, 2], [3]], width, junk=6), lengths(8, 4))
        assert missing.tolist() == [6, 3]
        assert ledger.first_missing(table([[5]], 1), lengths(1)).tolist() == [0]
