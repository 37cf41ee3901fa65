"""`specgate bench gpu`: its exit statuses, its files, and the arguments that it refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check import device, plan, running
from benchmarks.gpu_check.plan import CheckPlan, Device, Stage
from server.commands import FAILED, INTERRUPTED, NO_DEVICE
from server.commands.bench import bench
from tests.benchmarks.refusal import complaint

CPU = ["gpu", "--device", "cpu"]


@pytest.fixture
def a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices are known without asking torch."""
    found = {"device": "cpu", "torch": "2", "cuda": None, "devices": ["cpu"]}
    monkeypatch.setattr(device, "probe", lambda kind: found)


@pytest.fixture
def two_stages(monkeypatch: pytest.MonkeyPatch, a_cpu: None) -> None:
    """A stage that passes, `good`, and one that does not, `bad`."""

    def made(checked: CheckPlan) -> list[Stage]:
        found = {"good": [], "bad": ["draft: it never drafted"]}
        return [_stage(checked.out, name, problems) for name, problems in found.items()]

    monkeypatch.setattr(plan, "stages", made)


def _stage(out: Path, name: str, problems: list[str]) -> Stage:
    result = out / f"{name}.json"
    text = json.dumps({"rows": [{"method": "none"}], "problems": problems})
    code = f"open({str(result)!r}, 'w').write({text!r})"
    return Stage(name, "a test", [sys.executable, "-c", code], result, 60.0)


def test_without_a_gpu_it_says_so_in_one_line_and_has_its_own_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def none(kind: Device) -> Any:
        raise device.NoDevice("no GPU: torch 2.13.0 finds none")

    monkeypatch.setattr(device, "probe", none)
    assert bench(["gpu", "--out", str(tmp_path)]) == NO_DEVICE == 3
    captured = capsys.readouterr()
    assert captured.err == "specgate: error: no GPU: torch 2.13.0 finds none\n"
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("two_stages")
def test_a_stage_that_fails_does_not_hold_up_the_others_and_gives_the_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert bench([*CPU, "--out", str(tmp_path)]) == FAILED
    captured = capsys.readouterr()
    printed = captured.out
    assert captured.err == (
        "good runs, at most 1 minutes: a test\nbad runs, at most 1 minutes: a test\n"
    )
    assert "| good | a test | passed |" in printed
    assert "| bad | a test | failed: draft: it never drafted |" in printed
    report = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [one["outcome"] for one in report["results"]] == ["passed", "failed"]
    assert report["devices"] == ["cpu"]
    assert "- draft: it never drafted" in (tmp_path / "gpu-check.md").read_text()


@pytest.mark.usefixtures("two_stages")
def test_an_interrupted_check_keeps_the_stages_that_are_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_stage = running.run_stage

    def interrupted(stage: Stage, out: Path) -> Any:
        if stage.name == "bad":
            raise KeyboardInterrupt
        return run_stage(stage, out)

    monkeypatch.setattr(running, "run_stage", interrupted)
    assert bench([*CPU, "--out", str(tmp_path)]) == INTERRUPTED
    report = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [one["name"] for one in report["results"]] == ["good"]


@pytest.mark.usefixtures("two_stages")
def test_stages_can_be_chosen(tmp_path: Path) -> None:
    assert bench([*CPU, "--out", str(tmp_path), "--stage", "good"]) == 0
    report = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [one["name"] for one in report["results"]] == ["good"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--stage", "all"],
            "--stage: 'all' is unknown; there are stock, eager, graphs",
        ),
        (["--device", "tpu"], "--device"),
        (["--prompts", "0"], "--prompts: must be an integer of at least 1"),
        (["--limit", "0"], "--limit: must be a number from 1 to 86400"),
        (["--proposer", "{}"], "--proposer"),
    ],
)
def test_wrong_arguments_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(bench, ["gpu", *words], capsys)


def test_arguments_of_servers_are_refused_for_engines(capsys: pytest.CaptureFixture[str]) -> None:
    message = complaint(bench, ["compare", "--in-process", "--graphs"], capsys)
    assert message.startswith("--in-process: measures engines with the default arguments")
