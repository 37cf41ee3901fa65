"""The stage that compares speed: its figures are those of `specgate bench compare`."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu_check.speed_stage import main

NGRAM = '{"name": "ngram"}'


@pytest.mark.prove
@pytest.mark.engine
def test_every_side_is_a_row_and_the_base_has_no_ratio(tmp_path: Path) -> None:
    words = ["--engine", "fake", "--target", "demo", "--proposer", NGRAM, "--method", "none"]
    words += ["--side", "one", "--side", "all", "--pairs", "2", "--max-tokens", "16"]
    result = tmp_path / "speed.json"
    assert main(str(tmp_path / "speed"), str(result), "--concurrency", "1", *words) == 0
    found = json.loads(result.read_text())
    assert found["problems"] == []
    base, other = found["rows"]
    assert (base["proposer"], base["streams"], base["side"]) == ("none", 1, "one")
    assert "ratio" not in base
    assert other["side"] == "all"
    assert other["from"] <= other["ratio"] <= other["to"]
    assert other["tokens/s"] > 0


def test_a_comparison_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    result = tmp_path / "speed.json"
    assert main(str(tmp_path), str(result), "--method", "unknown", "--engine", "fake") != 0
    assert not result.exists()
