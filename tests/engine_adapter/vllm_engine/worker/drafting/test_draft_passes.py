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


def test_every_row_gets_its_tokens_of_all_passes(passes: Any) -> None:
    of_passes = [(slice(2), torch.tensor([5, 6])), (slice(2), torch.tensor([7, 8]))]
    assert [*map(list, passes.drafts_of_passes(of_passes))] == [[5, 7], [6, 8]]


def test_a_row_that_leaves_the_passes_has_fewer_drafts(passes: Any) -> None:
    of_passes = [
        (slice(3), torch.tensor([1, 2, 3])),
        (slice(2), torch.tensor([4, 5])),
        (np.array([1]), torch.tensor([6])),
    ]
    drafts = passes.drafts_of_passes(of_passes)
    assert [*map(list, drafts)] == [[1, 4], [2, 5, 6], [3]]


def test_passes_may_end_before_the_last_one_that_was_planned(passes: Any) -> None:
    drafts = passes.drafts_of_passes([(slice(1), torch.tensor([9]))])
    assert [*map(list, drafts)] == [[9]]


def test_taken_rows_are_the_first_ones_or_those_at_indices(passes: Any) -> None:
    values = torch.arange(8).view(4, 2)
    assert passes.select_rows(values, slice(4)) is values
    assert torch.equal(passes.select_rows(values, slice(3)), values[:3])
    assert torch.equal(passes.select_rows(values, np.array([2, 0])), values[[2, 0]])
