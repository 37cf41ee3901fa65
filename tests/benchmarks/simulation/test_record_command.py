"""The command `record` on the demo's engine, and the arguments that it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulation import record_command
from benchmarks.simulation.__main__ import main
from benchmarks.simulation.record import TIMED_ROWS, RecordPlan
from benchmarks.simulation.trace import Trace, load_trace
from demo import model_path
from engine_adapter.policies.contract import RequestClass
from server.commands import FAILED
from tests.benchmarks.refusal import complaint
from tests.benchmarks.simulation.synthetic import synthetic_trace

DRAFT = {"name": "draft", "method": "draft_model", "model": str(model_path("draft"))}
LOOKUP = {"name": "ngram", "num_speculative_tokens": 3}


@pytest.mark.prove
@pytest.mark.engine
def test_a_recording_is_a_trace_that_can_be_replayed(tmp_path: Path) -> None:
    out = tmp_path / "new" / "trace.json.gz"
    words = ["--requests", "2", "--max-tokens", "16", "--streams", "3", "--timed-steps", "4"]
    words += ["--temperature", "0", "--temperature", "0.7", "--out", str(out)]
    for proposer in (LOOKUP, DRAFT):
        words += ["--proposer", json.dumps(proposer)]
    # A process of its own: the engine stays in the one that records.
    command = [sys.executable, "-P", "-m", "benchmarks.simulation"]
    done = subprocess.run(
        [*command, "record", *words], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    *timed, last = done.stdout.splitlines()
    assert [line.split(":")[0] for line in timed] == [
        f"timed steps of {rows} rows" for rows in TIMED_ROWS
    ]
    assert last == f"{out}: 8 requests, {out.stat().st_size} bytes"
    trace = load_trace(out)
    assert [one.name for one in trace.proposers] == ["ngram", "draft"]
    kinds = sorted((request.label, request.request_class) for request in trace.requests)
    both = (RequestClass.GREEDY, RequestClass.SAMPLED)
    assert kinds == [(label, kind) for label in ("free", "quote") for kind in both for _ in "ab"]
    for request in trace.requests:
        assert request.drafted.shape == (16, 2)
        assert not request.drafted[0].any(), "the first token is the prompt's"
        # All positions but the last, where no token is left to draft.
        assert (request.drafted[1:15, 1] > 0).all()
        assert request.drafted[:, 0].max() <= 3
    assert sum(int(request.accepted[:, 1].sum()) for request in trace.requests) > 8
    assert trace.costs.target.seconds(1) > 0
    assert trace.costs.drafts["draft"].seconds(1, 3, 3, 0) > 0
    replayed = ["--workload", "mixed", "--streams", "2", "--requests", "4"]
    assert main(["replay", str(out), "--out", str(tmp_path), *replayed]) == 0


def test_arguments_become_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[RecordPlan] = []

    def made(plan: RecordPlan, print_line: Any) -> Trace:
        plans.append(plan)
        return synthetic_trace(requests=1, output_tokens=4)

    monkeypatch.setattr(record_command, "record", made)
    out = tmp_path / "a" / "b.json.gz"
    words = ["record", "--out", str(out), "--proposer", json.dumps(LOOKUP)]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{out}: 2 requests, {out.stat().st_size} bytes\n"
    more = ["--temperature", "0.5", "--requests", "3", "--max-tokens", "9", "--streams", "2"]
    assert main([*words, *more, "--timed-steps", "7", "--minutes", "0.5"]) == 0
    default, given = plans
    target = str(model_path("target"))
    assert default == RecordPlan(target, "demo", default.specs)
    assert [spec.name for spec in default.specs] == ["ngram"]
    assert given == RecordPlan(target, "demo", given.specs, [0.5], 2, 3, 9, 7, 30.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: --out"),
        (["--out", "FOLDER"], "is a folder; name a file in it"),
        (["--out", "x", "--temperature", "3"], "--temperature: must be a number from 0 to 2"),
        (["--out", "x", "--temperature", "nan"], "--temperature: must be a number from 0 to 2"),
        (["--out", "x", "--requests", "0"], "--requests: must be an integer of at least 1"),
        (["--out", "x", "--streams", "x"], "--streams: must be an integer of at least 1"),
        (["--out", "x", "--minutes", "0"], "--minutes: must be a number from 0.1 to 1440"),
        (["--out", "x", "--proposer", "{}"], "--proposer: "),
    ],
)
def test_wrong_arguments_are_refused_before_an_engine_starts(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(record_command, "record", None)
    given = [word.replace("FOLDER", str(tmp_path)) for word in words]
    assert message in complaint(main, ["record", *given], capsys)
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_way_fails_before_an_engine_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(record_command, "record", None)
    words = ["--proposer", json.dumps(LOOKUP), "--out", str(tmp_path / "file" / "trace.json.gz")]
    assert main(["record", *words]) == FAILED
    assert str(tmp_path / "file") in capsys.readouterr().err
