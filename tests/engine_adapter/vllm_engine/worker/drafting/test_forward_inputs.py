"""Inputs of forward passes, compared with positions and slots counted one by one."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine.worker.drafting.forward_inputs import (
    ForwardInputBuilder,
    ForwardInputs,
)

pytestmark = pytest.mark.needs_vllm

SIZE = 4
TABLE = np.array([[7, 3, 9], [2, 5, 0], [8, 1, 6]], np.int32)


@pytest.fixture
def builder() -> ForwardInputBuilder:
    table = SimpleNamespace(
        block_size=SIZE,
        get_numpy_array=lambda: TABLE,
        get_device_tensor=lambda num_reqs: torch.from_numpy(TABLE)[:num_reqs],
    )
    return ForwardInputBuilder({3: table}, [3], torch.device("cpu"))


def by_row(inputs: ForwardInputs) -> list[tuple[int, list[int], list[int]]]:
    """The index, positions and slots of each row, as the metadata divides them."""
    starts = inputs.metadata[3].query_start_loc.tolist()
    return [
        (int(row), inputs.positions[a:b].tolist(), inputs.slots[3][a:b].tolist())
        for row, a, b in zip(inputs.rows, starts, starts[1:], strict=False)
    ]


def slot(row: int, position: int) -> int:
    return int(TABLE[row, position // SIZE]) * SIZE + position % SIZE


def expected(row: int, positions: range) -> tuple[int, list[int], list[int]]:
    return row, list(positions), [slot(row, position) for position in positions]


def test_prefill_covers_several_tokens_of_some_rows(builder: ForwardInputBuilder) -> None:
    inputs = builder.prefill(np.array([2, 0]), np.array([3, 0]), np.array([6, 1]))
    assert by_row(inputs) == [expected(2, range(3, 9)), expected(0, range(1))]
    metadata = inputs.metadata[3]
    assert metadata.seq_lens.tolist() == [9, 1]
    assert (metadata.max_query_len, metadata.max_seq_len) == (6, 9)
    assert (metadata.num_reqs, metadata.num_actual_tokens) == (2, 7)
    assert metadata.block_table_tensor.tolist() == TABLE[[2, 0]].tolist()
    assert metadata.slot_mapping is inputs.slots[3]


def test_a_block_that_ends_after_the_tokens_of_its_row_reads_the_newest_there(
    builder: ForwardInputBuilder,
) -> None:
    token_ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    inputs = builder.prefill(np.array([1]), np.array([3]), np.array([3]), token_ids)
    assert inputs.tokens.tolist() == [7, 7, 7]
    assert inputs.positions.tolist() == [3, 4, 5]


def test_each_decode_step_is_one_position_further_and_drops_rows(
    builder: ForwardInputBuilder,
) -> None:
    steps = list(builder.decode_steps(np.array([1, 2, 0]), np.array([2, 7, 3]), [2, 2, 1]))
    assert [by_row(inputs) for inputs in steps] == [
        [expected(1, range(2, 3)), expected(2, range(7, 8))],
        [expected(1, range(3, 4)), expected(2, range(8, 9))],
        [expected(1, range(4, 5))],
    ]
    assert [inputs.metadata[3].seq_lens.tolist() for inputs in steps] == [[3, 8], [4, 9], [5]]
    for inputs in steps:
        assert inputs.metadata[3].max_query_len == 1
        assert inputs.metadata[3].max_seq_len == inputs.metadata[3].seq_lens.max()
        assert (
            inputs.metadata[3].num_reqs == inputs.metadata[3].num_actual_tokens == len(inputs.rows)
        )


def test_steps_that_do_not_advance_are_at_one_position(builder: ForwardInputBuilder) -> None:
    rows, position = np.array([1, 2]), np.array([2, 7])
    steps = list(builder.decode_steps(rows, position, [2, 1], None, False))
    assert [by_row(inputs) for inputs in steps] == [
        [expected(1, range(2, 3)), expected(2, range(7, 8))],
        [expected(1, range(2, 3))],
    ]
    assert [inputs.metadata[3].seq_lens.tolist() for inputs in steps] == [[3, 8], [3]]
    assert [inputs.metadata[3].max_seq_len for inputs in steps] == [8, 3]


def test_a_row_that_ends_early_may_be_at_the_end_of_the_table(
    builder: ForwardInputBuilder,
) -> None:
    last = TABLE.shape[1] * SIZE - 1
    steps = list(builder.decode_steps(np.array([1, 0]), np.array([0, last]), [2, 1, 1]))
    assert by_row(steps[0])[1] == expected(0, range(last, last + 1))
    assert [by_row(inputs)[0] for inputs in steps[1:]] == [
        expected(1, range(1, 2)),
        expected(1, range(2, 3)),
    ]


def test_without_tokens_to_draft_there_is_no_decode_step(builder: ForwardInputBuilder) -> None:
    assert list(builder.decode_steps(np.array([0]), np.array([3]), [])) == []
