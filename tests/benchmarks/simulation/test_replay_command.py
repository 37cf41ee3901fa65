"""The command `replay` over a made-up trace: table, files, and the arguments that it refuses."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.simulation.__main__ import main
from benchmarks.simulation.trace import save_trace
from server.commands import FAILED
from tests.benchmarks.refusal import complaint
from tests.benchmarks.simulation.synthetic import synthetic_trace

STATIC = ["none", "ngram", "suffix", "draft", "medusa", "eagle3"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "made.json.gz"
    save_trace(synthetic_trace(requests=4, output_tokens=24), path)
    return path


def replay(trace: Path, out: Path, *words: str) -> int:
    return main(["replay", str(trace), "--out", str(out), "--requests", "6", *words])


def cells(table: str) -> list[list[str]]:
    """The rows of a Markdown table without its head."""
    rows = [line.strip("| \n").split(" | ") for line in table.splitlines() if line[:1] == "|"]
    return rows[2:]


def test_a_replay_prints_a_row_for_each_method_and_writes_it(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "folder"
    words = ["--workload", "shift", "--workload", "free", "--streams", "2"]
    assert replay(trace, out, *words, "--policy", "load", "--policy", "auto") == 0
    printed = capsys.readouterr().out
    methods = [*STATIC, "label oracle", "load", "auto"]
    assert [row[:3] for row in cells(printed)] == [
        [workload, "2", f"`{method}`"] for workload in ("shift", "free") for method in methods
    ]
    assert (out / "replay.md").read_text() == printed
    whole = json.loads((out / "replay.json").read_text())
    assert whole["target"] == "synthetic"
    assert whole["command"].startswith("python -m benchmarks.simulation replay")
    for row, result in zip(cells(printed), whole["results"], strict=True):
        assert row[3] == f"{result['tokens_per_s']:.1f}"
        regret = result["regret_static"][result["best_static"]]
        assert row[4] == f"{100 * regret:+.1f} % of `{result['best_static']}`"
        assert row[7] == str(result["steps"])
        assert len(result["adapted"]) == (2 if result["workload"] == "shift" else 0)
    assert (out / "replay.svg").stat().st_size > 1000


def test_the_same_seed_gives_the_same_table_and_another_one_does_not(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = []
    for seed in ("5", "5", "6"):
        words = ["--workload", "mixed", "--streams", "2", "--outliers", "0.1", "--seed", seed]
        assert replay(trace, tmp_path, *words) == 0
        tables.append(cells(capsys.readouterr().out))
    assert tables[0] == tables[1] != tables[2]


def test_noise_and_outliers_make_steps_longer(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = []
    for outliers in ("0", "0.5"):
        words = ["--workload", "quote", "--streams", "1", "--noise", "0", "--outliers", outliers]
        assert replay(trace, tmp_path, *words) == 0
        speeds.append(float(cells(capsys.readouterr().out)[0][3]))
    assert speeds[1] < speeds[0] / 5


def test_parameters_and_the_primary_proposer_reach_the_policies(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--workload", "quote", "--streams", "1", "--policy", "load", "--policy", "auto"]
    shares = []
    for words in (
        ["--primary", "medusa"],
        ["--primary", "eagle3", "--parameters", '{"auto": {"min_gain": 1.0}}'],
    ):
        assert replay(trace, tmp_path, *base, *words) == 0
        results = json.loads((tmp_path / "replay.json").read_text())["results"]
        shares.append({result["method"]: result["shares"] for result in results})
    assert shares[0]["load"].get("medusa", 0.0) > 0.5
    assert shares[1]["load"].get("eagle3", 0.0) > 0.5
    assert shares[1]["auto"]["none"] > shares[0]["auto"].get("none", 0.0)


def test_a_trace_without_a_workloads_label_fails_after_the_rows_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = synthetic_trace(requests=2, output_tokens=8)
    whole = [request for request in made.requests if request.label == "free"]
    path = tmp_path / "free.json.gz"
    save_trace(type(made)(made.target, made.proposers, made.costs, tuple(whole)), path)
    words = ["--streams", "1", "--workload", "free", "--workload", "rag"]
    assert replay(path, tmp_path, *words) == FAILED
    captured = capsys.readouterr()
    assert "the trace has no requests with the label 'quote'" in captured.err
    assert {row[0] for row in cells((tmp_path / "replay.md").read_text())} == {"free"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: trace"),
        (["TRACE", "--policy", "best"], "--policy: 'best' is unknown; there are auto, load"),
        (["TRACE", "--workload", "rush"], "--workload: invalid choice: 'rush'"),
        (["TRACE", "--streams", "0"], "--streams: must be an integer of at least 1, got '0'"),
        (["TRACE", "--requests", "-3"], "--requests: must be an integer of at least 1, got '-3'"),
        (["TRACE", "--seed", "-1"], "--seed: must be an integer from 0 to 2147483647, got '-1'"),
        (["TRACE", "--noise", "nan"], "--noise: must be a number from 0 to 1, got 'nan'"),
        (["TRACE", "--outliers", "2"], "--outliers: must be a number from 0 to 1, got '2'"),
        (["TRACE", "--primary", "eagle"], "--primary: 'eagle' is not in the trace: ngram, suf"),
        (["TRACE", "--parameters", "[]"], "--parameters: must be a JSON object, got []"),
        (
            ["TRACE", "--parameters", '{"good": {}}'],
            "--parameters: no policy 'good'; there are auto",
        ),
        (["TRACE", "--parameters", '{"auto": 1}'], "--parameters: auto: must be a JSON object"),
        (
            ["TRACE", "--parameters", '{"auto": {"gain": 1}}'],
            "--parameters: auto.gain: unknown; the parameters are min_gain",
        ),
        (["TRACE", "--out", "TRACE"], "is a file; name a folder"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_step(
    words: list[str], message: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.replace("TRACE", str(trace)) for word in words]
    assert message in complaint(main, ["replay", *given], capsys)


def test_a_file_that_is_not_a_trace_fails_with_its_name(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads(gzip.decompress(trace.read_bytes()))
    empty, text = tmp_path / "empty.json.gz", tmp_path / "text.json.gz"
    empty.write_bytes(gzip.compress(json.dumps({**whole, "requests": []}).encode()))
    text.write_text("{}")
    for path, why in (
        (empty, "empty.json.gz is not a trace: it has no requests"),
        (text, "text.json.gz is not a trace: Not a gzipped file"),
        (tmp_path / "none.json.gz", "none.json.gz: No such file or directory"),
    ):
        assert replay(path, tmp_path) == FAILED
        assert why in capsys.readouterr().err
