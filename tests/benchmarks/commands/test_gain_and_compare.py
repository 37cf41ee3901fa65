"""`specgate bench gain` and `compare` on the fake engine, and the arguments that it refuses."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from server.commands import FAILED, INTERRUPTED
from server.commands.bench import bench
from tests.benchmarks.refusal import complaint

NGRAM = '{"name": "ngram"}'


@pytest.mark.engine
def test_gain_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    words = ["gain", "--engine", "fake", "--target", "demo", "--quick", "--kind", "free"]
    words += ["--temperature", "0", "--proposer", NGRAM, "--out", str(tmp_path)]
    assert bench(words) == 0
    results = json.loads((tmp_path / "gain.json").read_text())["results"]
    assert [(r["concurrency"], r["proposer"]) for r in results] == [
        (level, name) for level in (1, 2) for name in ("none", "ngram", "auto")
    ]
    assert all(r["tokens_per_s"] > 0 for r in results)
    assert results[1]["tokens_per_step"] > 1.2, "the fake engine accepts seven of ten"
    assert capsys.readouterr().out.count("| `ngram` |") == 2
    assert "| proposer | 1 stream | 2 streams |" in (tmp_path / "gain.md").read_text()
    assert (tmp_path / "gain.svg").stat().st_size > 1000


@pytest.mark.prove
@pytest.mark.engine
@pytest.mark.parametrize("pairs", [1, 3])
def test_compare_measures_two_servers(tmp_path: Path, pairs: int) -> None:
    words = ["compare", "--engine", "fake", "--side", "one", "--side", "all"]
    words += ["--method", "none", "--concurrency", "2", "--pairs", str(pairs), "--max-tokens", "48"]
    assert bench([*words, "--proposer", NGRAM, "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "compare.json").read_text())
    assert [(r["side"], r["base"]) for r in report["results"]] == [("one", "one"), ("all", "one")]
    assert report["results"][1]["ratio"]["count"] == pairs
    assert report["cores"] >= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["race"], "choose from"),
        (["gain", "--proposer", "{"], "--proposer: is not valid JSON"),
        (["gain", "--proposer", '{"name": "none"}'], "--proposer: name: 'none' is reserved"),
        (["compare", "--pairs", "0"], "--pairs: must be an integer of at least 1, got '0'"),
        (["compare", "--quick"], "--quick"),
        (["compare", "--target", "/nope"], "--target: the folder /nope does not exist"),
        (["gain", "--target", "./a/b"], "--target: the folder ./a/b does not exist"),
    ],
)
def test_wrong_arguments_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(bench, words, capsys)


def test_an_unknown_method_fails_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "--engine", "fake", "--proposer", NGRAM, "--method", "suffix"]
    assert bench([*words, "--out", str(tmp_path)]) == FAILED
    assert "no proposer 'suffix'; the proposers are ngram" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.engine
def test_on_sigterm_it_ends_its_servers(tmp_path: Path) -> None:
    words = ["gain", "--engine", "fake", "--target", "demo", "--proposer", NGRAM]
    command = [sys.executable, "-m", "server.cli", "bench", *words, "--out", str(tmp_path)]
    with subprocess.Popen(command) as running:
        servers: list[psutil.Process] = []
        deadline = time.monotonic() + 120
        while not servers:
            assert time.monotonic() < deadline, "no server was started"
            assert running.poll() is None
            servers = psutil.Process(running.pid).children(recursive=True)
            time.sleep(0.1)
        running.terminate()
        assert running.wait(90) == INTERRUPTED
    assert psutil.wait_procs(servers, timeout=60)[1] == []
