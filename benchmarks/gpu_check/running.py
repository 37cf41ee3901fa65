"""Runs the stages, each in a process of its own with a time limit."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gpu_check.plan import Stage

GRACE_S = 60.0
"""What a stage that is told to end may take, in seconds; then it is killed."""

LOG_END = 40
"""Lines of a failed stage's log in the report."""


class Outcome(StrEnum):
    """How a stage ended."""

    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class StageResult:
    """One line of the report; the fields are the keys of its JSON.

    Attributes:
        reason: why it did not pass, in one line; empty if it did.
        rows: what was measured.
        problems: what is wrong, one line each.
        log: name of the file with what the process printed; empty without a process.
        log_end: its last lines, of a stage that did not pass.
    """

    name: str
    purpose: str
    outcome: Outcome
    seconds: float = 0.0
    reason: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    problems: Sequence[str] = ()
    log: str = ""
    log_end: Sequence[str] = field(default=())


def run_stages(
    stages: Sequence[Stage],
    out: Path,
    devices: int,
    on_result: Callable[[StageResult], None],
) -> None:
    """Runs the stages one after the other; a stage that fails does not keep the next from running.

    Args:
        out: folder of the logs.
        devices: how many there are.
        on_result: gets each result as soon as it is known.
    """
    for stage in stages:
        if stage.devices > devices:
            reason = f"needs {stage.devices} devices, there is {devices}"
            result = StageResult(stage.name, stage.purpose, Outcome.SKIPPED, reason=reason)
        else:
            result = run_stage(stage, out)
        on_result(result)


def run_stage(stage: Stage, out: Path) -> StageResult:
    """Runs a stage to its end, or to its time limit. Nothing of it runs on afterwards."""
    out.mkdir(parents=True, exist_ok=True)
    stage.result.unlink(missing_ok=True)  # of an earlier check
    log = out / f"{stage.name}.log"
    began = time.monotonic()
    status = _run(stage, log)
    seconds = time.monotonic() - began
    outcome, reason, found = _judge(stage, status)
    passed = outcome is Outcome.PASSED
    lines = log.read_text("utf-8", "replace").splitlines()
    rows = found.get("rows", ()) if stage.rows_of_log is None else stage.rows_of_log(lines)
    return StageResult(
        stage.name,
        stage.purpose,
        outcome,
        seconds,
        reason,
        rows,
        found.get("problems", ()),
        log.name,
        () if passed else lines[-LOG_END:],
    )


def _run(stage: Stage, log: Path) -> int | None:
    """The process's exit status; `None` if its time was over."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            stage.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **stage.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(stage.limit_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return None
    except KeyboardInterrupt:
        _end(process)
        raise
    finally:
        # A crashed stage may leave engines behind, which would hold the device's memory.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started. `specgate bench` ends its servers by itself."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    for one in started:  # servers have process groups of their own
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.kill()
    process.wait()


def _judge(stage: Stage, status: int | None) -> tuple[Outcome, str, Mapping[str, Any]]:
    found: dict[str, Any] = {}
    if stage.result.is_file():
        with suppress(ValueError):  # of a process that was killed while it wrote
            found = json.loads(stage.result.read_text("utf-8"))
    if status is None:
        return Outcome.TIMED_OUT, f"not done after {stage.limit_s:.0f} s", found
    if status or not found:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return Outcome.CRASHED, f"{how}, without a result" if not found else how, found
    if problems := found.get("problems"):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Outcome.FAILED, f"{problems[0]}{more}", found
    return Outcome.PASSED, "", found
