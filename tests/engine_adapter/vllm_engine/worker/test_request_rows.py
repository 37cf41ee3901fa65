"""The mirrors of V2's state: what dispatch reads of a request stays at its row."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine.worker.request_rows import RequestRows, RowTables

ROWS, CONTEXT, WIDTH = 4, 12, 3


@pytest.fixture
def states() -> Any:
    """vLLM's `RequestState`, as far as it is read."""
    return SimpleNamespace(
        max_num_reqs=ROWS,
        max_model_len=CONTEXT,
        req_id_to_index={},
        index_to_req_id={},
        prompt_len=SimpleNamespace(np=np.zeros(ROWS, np.int32)),
        num_computed_tokens_np=np.zeros(ROWS, np.int32),
    )


@pytest.fixture
def tables() -> Any:
    """vLLM's `BlockTables` of two KV cache groups."""
    return SimpleNamespace(
        num_blocks=SimpleNamespace(np=np.zeros((2, ROWS), np.int32)),
        block_sizes=[32, 16],
        block_tables=[
            SimpleNamespace(gpu=torch.zeros(ROWS, WIDTH, dtype=torch.int32)) for _ in range(2)
        ],
    )


def place(states: Any, request_id: str, row: int) -> None:
    states.req_id_to_index[request_id] = row
    states.index_to_req_id[row] = request_id


def new(request_id: str, tokens: list[int], blocks: Any = ()) -> Any:
    """vLLM's `NewRequestData`."""
    return SimpleNamespace(req_id=request_id, prefill_token_ids=tokens, block_ids=blocks)


def test_tokens_follow_each_row_whatever_the_order_of_the_step(states: Any) -> None:
    rows = RequestRows(states)
    place(states, "a", 3)
    place(states, "b", 1)
    rows.add([new("a", [1, 2, 3]), new("b", [7])])
    emitted = np.array([[8, 9], [4, 0]])
    num_sampled = rows.append(np.array([1, 3]), emitted, np.array([2, 1]))
    assert num_sampled.tolist() == [0, 2, 0, 1]
    assert rows.num_tokens_no_spec.tolist() == [0, 3, 0, 4]
    assert rows.token_ids_cpu[3, :4].tolist() == [1, 2, 3, 4]
    assert rows.token_ids_cpu[1, :3].tolist() == [7, 8, 9]
    assert rows.req_ids[3] == "a"


def test_a_row_in_its_prompt_emits_nothing(states: Any) -> None:
    rows = RequestRows(states)
    place(states, "a", 0)
    rows.add([new("a", [1, 2, 3])])
    assert rows.append(np.array([0]), np.array([[5]]), np.array([0]))[0] == 0
    assert rows.num_tokens_no_spec[0] == 3


def test_a_request_that_resumes_in_another_row_brings_its_output(states: Any) -> None:
    rows = RequestRows(states)
    place(states, "a", 0)
    rows.add([new("a", [1, 2])])
    rows.append(np.array([0]), np.array([[3]]), np.array([1]))
    place(states, "a", 2)
    rows.add([new("a", [1, 2, 3])])
    assert rows.num_tokens_no_spec[2] == 3
    assert rows.token_ids_cpu[2, :3].tolist() == [1, 2, 3]


def test_blocks_of_each_group_are_appended_where_vllm_appended_them(
    states: Any, tables: Any
) -> None:
    rows = RequestRows(states)
    rows.block_table = RowTables(tables)
    place(states, "a", 1)
    tables.num_blocks.np[:, 1] = 1, 2
    rows.add([new("a", [1], ([5], [6, 7]))])
    tables.num_blocks.np[:, 1] = 2, 2
    cached = SimpleNamespace(req_ids=["a", "b"], new_block_ids=[([9], []), None])
    rows.add_blocks(cached)
    first, second = rows.block_table.block_tables
    assert first.get_numpy_array()[1].tolist() == [5, 9, 0]
    assert second.get_numpy_array()[1].tolist() == [6, 7, 0]
    assert (rows.block_table[0].block_size, rows.block_table[1].block_size) == (32, 16)
    assert first.get_device_tensor(2).shape == (2, WIDTH)
