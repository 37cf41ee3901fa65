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


def test_a_comparison_that_is_ended_leaves_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {
        **dict.fromkeys(("tokens_per_s", "step_ms", "tokens_per_step"), 2.0),
        **{"method": "none", "concurrency": 1, "side": "stock", "base": "stock"},
    }

    def ended(words: list[str]) -> int:
        (tmp_path / "compare.json").write_text(json.dumps({"results": [found]}))
        raise KeyboardInterrupt

    monkeypatch.setattr("server.cli.main", ended)
    result = tmp_path / "speed.json"
    with pytest.raises(KeyboardInterrupt):
        main(str(tmp_path), str(result))
    assert [row["side"] for row in json.loads(result.read_text())["rows"]] == ["stock"]


def test_a_comparison_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text('{"results": []}')  # of an earlier check
    result = tmp_path / "speed.json"
    assert main(str(tmp_path), str(result), "--method", "unknown", "--engine", "fake") != 0
    assert not result.exists()
