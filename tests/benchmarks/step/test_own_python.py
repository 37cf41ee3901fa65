"""The benchmark of Specgate's own part of a step runs, with the hooks as they are."""

import pytest


@pytest.mark.needs_vllm
def test_each_method_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.step import own_python

    monkeypatch.setattr(own_python, "STEPS", 2)
    rows = list(own_python.table_rows([("none", 2), ("ngram", 3), ("suffix", 3)]))
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [(method, rows) for method, rows, *_ in cells] == [
        ("`none`", "2"),
        ("`ngram`", "3"),
        ("`suffix`", "3"),
    ]
    assert cells[0][2] == "0"
    assert all(float(total) > 0 for *_, total in cells)
