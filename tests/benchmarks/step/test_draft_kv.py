"""The bookkeeping of a head's KV in a step: its table."""

import pytest

from benchmarks.step import draft_kv


def test_the_table_has_a_line_for_each_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(draft_kv, "CASES", ((1, 20), (3, 2_000)))
    monkeypatch.setattr(draft_kv, "STEPS", 3)
    assert draft_kv.main() == 0
    _, _, short, long = capsys.readouterr().out.splitlines()
    assert short.startswith("| 1 | 20 |")
    assert long.startswith("| 3 | 2,000 |")
    assert float(short.split("|")[-2]) > 0
