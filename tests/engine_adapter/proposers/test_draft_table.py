"""Drafts on the device: their number is known, and reading them waits."""

from typing import Any

import pytest
import torch

from engine_adapter.proposers import draft_table
from engine_adapter.proposers.draft_table import DraftRow, DraftTable, on_device

CPU = torch.device("cpu")


@pytest.fixture
def table() -> DraftTable:
    return DraftTable(torch.tensor([[5, 6, 7], [8, 9, 1]]))


def test_rows_read_like_lists(table: DraftTable) -> None:
    first, second = table.rows()
    assert [list(first), list(second)] == [[5, 6, 7], [8, 9, 1]]
    assert first == [5, 6, 7]
    assert first != second
    assert (first[0], second[-1], second[1:]) == (5, 1, [9, 1])


def test_the_first_drafts_of_a_row_are_still_on_the_device(table: DraftTable) -> None:
    row = table.rows()[1][:2]
    assert isinstance(row, DraftRow)
    assert torch.equal(on_device(row, CPU), torch.tensor([8, 9]))
    assert row[:5] == row
    assert not row[:0]


def test_only_the_tokens_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []

    class Copy:
        def __init__(self, *tensors: torch.Tensor) -> None:
            self._tensors = tensors

        def arrays(self) -> list[Any]:
            waits.append(self)
            return [tensor.numpy() for tensor in self._tensors]

    monkeypatch.setattr(draft_table, "HostCopy", Copy)
    row = DraftTable(torch.tensor([[3, 4]])).rows()[0]
    assert (len(row), len(row[:1]), bool(row), on_device(row, CPU).shape) == (2, 1, True, (2,))
    assert not waits
    assert row.numpy().tolist() == [3, 4]
    assert waits


def test_drafts_that_nothing_reads_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[torch.Tensor] = []

    class Copy:
        def __init__(self, tokens: torch.Tensor) -> None:
            copied.append(tokens)

        def arrays(self) -> list[Any]:
            return [copied[0].numpy()]

    monkeypatch.setattr(draft_table, "HostCopy", Copy)
    row = DraftTable(torch.tensor([[3, 4]]), is_read=False).rows()[0]
    assert row[:2] is row
    assert not copied
    assert [row.numpy().tolist(), list(row)] == [[3, 4], [3, 4]]
    assert len(copied) == 1


def test_the_drafts_of_a_lookup_are_copied_to_the_device() -> None:
    assert torch.equal(on_device([4, 5], CPU), torch.tensor([4, 5]))
