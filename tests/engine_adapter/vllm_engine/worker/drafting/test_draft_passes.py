"""The tokens of draft passes, put together by row."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.needs_vllm


@pytest.fixture
def passes() -> Any:
    """The module; importing it imports vLLM."""
    return import_module("engine_adapter.vllm_engine.worker.drafting.draft_passes")


def drafts_of(passes: Any, *of_passes: tuple[Any, list[int]]) -> list[list[int]]:
    """The drafts of some passes: of each its rows and their tokens."""
    tokens = passes.PassTokens(len(of_passes[0][1]), 5, torch.device("cpu"))
    for depth, (rows, of_pass) in enumerate(of_passes):
        tokens.add(rows, depth, torch.tensor(of_pass))
    drafts = tokens.drafts()
    assert all(row.table.tokens.shape[1] == 5 for row in drafts)
    return [*map(list, drafts)]


def test_every_row_gets_its_tokens_of_all_passes(passes: Any) -> None:
    of_passes = (slice(2), [5, 6]), (slice(2), [7, 8])
    assert drafts_of(passes, *of_passes) == [[5, 7], [6, 8]]


def test_a_row_that_leaves_the_passes_has_fewer_drafts(passes: Any) -> None:
    of_passes = (slice(3), [1, 2, 3]), (slice(2), [4, 5]), (np.array([1]), [6])
    assert drafts_of(passes, *of_passes) == [[1, 4], [2, 5, 6], [3]]


def test_passes_may_end_before_the_last_one_that_was_planned(passes: Any) -> None:
    assert drafts_of(passes, (slice(1), [9])) == [[9]]


@pytest.mark.parametrize(
    ("k", "order", "counts"),
    [
        ([3, 3], [0, 1], [2, 2, 2]),
        ([1, 3, 0, 3, 2], [1, 3, 4, 0, 2], [4, 3, 2]),
        ([0, 0], [0, 1], []),
        ([2], [0], [1, 1]),
    ],
)
def test_rows_with_more_drafts_come_first(
    k: list[int], order: list[int], counts: list[int], passes: Any
) -> None:
    rows, rows_of_draft = passes.by_most_drafts(np.array(k))
    assert (rows.tolist(), rows_of_draft) == (order, counts)


def test_taken_rows_are_the_first_ones_or_those_at_indices(passes: Any) -> None:
    values = torch.arange(8).view(4, 2)
    assert passes.select_rows(values, slice(4)) is values
    assert torch.equal(passes.select_rows(values, slice(3)), values[:3])
    assert torch.equal(passes.select_rows(values, np.array([2, 0])), values[[2, 0]])
