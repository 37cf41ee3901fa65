"""The measurement of `ngram`: the cases that it names, with rows that get drafts."""

import pytest

from benchmarks import lookup_cost


def test_there_is_a_row_for_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_cost, "CASES", ((1, 40, 3), (4, 40, 3)))
    monkeypatch.setattr(lookup_cost, "STEPS", 2)
    found = [row.strip("| ").split(" | ") for row in lookup_cost.table_rows()]
    assert [(rows, length, drafted) for rows, length, drafted, _ in found] == [
        ("1", "40", "1"),
        ("4", "40", "4"),
    ]
    assert all(float(spent) > 0 for *_, spent in found)
