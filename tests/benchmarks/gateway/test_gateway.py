"""`python -m benchmarks.gateway` on few streams, and the arguments that it refuses."""

import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks.commands import run_command
from benchmarks.gateway.__main__ import make_parser, run
from tests.benchmarks.refusal import complaint

gateway = partial(run_command, make_parser(), run)

SMALL = ["--tokens", "40", "--rounds", "1"]


@pytest.mark.prove
@pytest.mark.engine
def test_it_measures_cpu_time_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gateway([*SMALL, "--seconds", "0", "--streams", "0", "--out", str(tmp_path)]) == 0
    (results,) = json.loads((tmp_path / "gateway.json").read_text())["results"]
    assert [(cost["side"], cost["answer"]["delta"]) for cost in results["costs"]] == [
        ("bare", 1),
        ("specgate", 1),
        ("bare", 3),
        ("specgate", 3),
    ]
    for cost in results["costs"]:
        assert len(cost["event_us"]) == len(cost["request_us"]) == 1
        assert cost["stream_us"][0] > 0
    assert (results["half_load"], results["many"]) == ([], [])
    printed = capsys.readouterr().out
    assert (tmp_path / "gateway.md").read_text() in printed
    assert printed.count("\n| specgate | ") == 2
    # One round has a ratio, and no interval.
    assert " to " not in (tmp_path / "gateway.md").read_text().partition("| side |")[2]
    recordings = json.loads((tmp_path / "recordings.json").read_text())
    # The role, the deltas and the end; with a delta of 3 the first still has one token.
    assert [len(one["events"]) for one in recordings] == [3, 42, 3, 16]


@pytest.mark.prove
@pytest.mark.engine
def test_it_measures_latency_and_many_streams(tmp_path: Path) -> None:
    words = [*SMALL, "--delta", "1", "--seconds", "2", "--streams", "300", "--out", str(tmp_path)]
    assert gateway(words) == 0
    (results,) = json.loads((tmp_path / "gateway.json").read_text())["results"]
    assert results["rate"] > 0
    for part in ("half_load", "many"):
        assert [one["side"] for one in results[part]] == ["bare", "specgate"]
        for one in results[part]:
            assert 0 <= one["lag"]["p50"] <= one["lag"]["p99"]
            assert 0 < one["first"]["p50"] <= one["first"]["p99"]
    assert [one["requests"] for one in results["many"]] == [300, 300]


@pytest.mark.prove
@pytest.mark.engine
def test_vllms_front_ends_are_measured_without_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An engine that this process had before has set it; stock vLLM's server would inherit it.
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    words = [*SMALL, "--engine", "vllm", "--delta", "3", "--out", str(tmp_path)]
    assert gateway(words) == 0
    (results,) = json.loads((tmp_path / "gateway.json").read_text())["results"]
    assert [cost["side"] for cost in results["costs"]] == ["bare", "specgate", "stock"]
    assert (results["half_load"], results["many"]) == ([], [])


@pytest.mark.prove
@pytest.mark.engine
def test_a_profile_has_the_functions_of_an_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gateway([*SMALL, "--delta", "1", "--profile", "4", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| function | calls | own us | cumulative us |"
    (events,) = (line for line in lines if line.startswith("| `response.events` |"))
    # Of 42 events, 40 come from a delta; the role comes with the first.
    assert float(events.split(" | ")[1]) == pytest.approx(40 / 42, abs=0.01)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--delta", "0"], "--delta: must be an integer from 1 to 9, got '0'"),
        (["--delta", "2.5"], "--delta: must be an integer from 1 to 9, got '2.5'"),
        (["--streams", "9999"], "--streams: must be an integer from 0 to 4000"),
        (["--step-ms", "0"], "--step-ms: must be a number from 1 to 1000"),
        (["--engine", "none"], "--engine: invalid choice: 'none'"),
        (["--engine", "vllm", "--profile", "3"], "--profile: works with --engine fake only"),
    ],
)
def test_wrong_arguments_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(gateway, words, capsys)
