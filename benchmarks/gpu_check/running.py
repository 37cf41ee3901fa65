"""Runs the stages, each in a process of its own with a time limit."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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

_VLLM_LINE = re.compile(r"^(?:\(.*?\) )?[A-Z]+ \d\d-\d\d [\d:]+ \[\S+\] (?P<text>.*)$")
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt): .*$")
_NOTED = (
    *("Model loading took", "torch.compile took", "Graph capturing finished"),
    *("Available KV cache memory", "KV cache size", "init engine"),
)
"""What vLLM says of a start that a GPU makes interesting."""


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
        reading: how to read the rows.
        rows: what was measured.
        problems: what is wrong, one line each.
        log: name of the file with what the process printed; empty without a process.
        log_end: its last lines, of a stage that did not pass.
        notes: what vLLM said of memory, compilation and graphs.
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
    reading: str = ""
    notes: Sequence[str] = ()


def run_stages(
    stages: Sequence[Stage],
    out: Path,
    devices: int,
    on_result: Callable[[StageResult], None],
    on_start: Callable[[Stage], None] = lambda stage: None,
) -> None:
    """Runs the stages one after the other; a stage that fails does not keep the next from running.

    Args:
        out: folder of the logs.
        devices: how many there are.
        on_result: gets each result as soon as it is known.
        on_start: gets each stage that begins.
    """
    for stage in stages:
        if stage.devices > devices:
            reason = f"needs {stage.devices} devices, there is {devices}"
            result = StageResult(stage.name, stage.purpose, Outcome.SKIPPED, reason=reason)
        else:
            on_start(stage)
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
    lines = log.read_text("utf-8", "replace").splitlines()
    outcome, reason, figures = _judge(stage, status, lines)
    passed = outcome is Outcome.PASSED
    rows = figures.get("rows", ()) if stage.rows_of_log is None else stage.rows_of_log(lines)
    return StageResult(
        stage.name,
        stage.purpose,
        outcome,
        seconds,
        reason,
        rows,
        figures.get("problems", ()),
        log.name,
        () if passed else lines[-LOG_END:],
        stage.reading,
        notes_of(lines),
    )


def notes_of(lines: Iterable[str]) -> list[str]:
    """What vLLM said of memory, compilation and graphs; each line once."""
    texts = (match["text"] for line in lines if (match := _VLLM_LINE.match(line)))
    return list(dict.fromkeys(text for text in texts if any(part in text for part in _NOTED)))


def cause_in(lines: Sequence[str]) -> str:
    """The error that ended a process: vLLM's first, or else the last one; empty without any.

    vLLM's process has the cause. The one that started it fails later, because that one ended.
    """
    logged = [m["text"].strip() for line in lines if (m := _VLLM_LINE.match(line))]
    error_line = next(filter(_ERROR.match, logged), None)
    return error_line or next(filter(_ERROR.match, reversed(lines)), "")


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
    for child in started:  # servers have process groups of their own
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.kill()
    process.wait()


def _judge(
    stage: Stage, status: int | None, lines: Sequence[str]
) -> tuple[Outcome, str, Mapping[str, Any]]:
    figures: dict[str, Any] = {}
    if stage.result.is_file():
        with suppress(ValueError):  # of a process that was killed while it wrote
            figures = json.loads(stage.result.read_text("utf-8"))
    if status is None:
        return Outcome.TIMED_OUT, f"not done after {stage.limit_s:.0f} s", figures
    if status or not figures:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        reason = how if figures else f"{how}, without a result"
        cause = cause_in(lines)
        return Outcome.CRASHED, f"{reason}: {cause}" if cause else reason, figures
    if problems := figures.get("problems"):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Outcome.FAILED, f"{problems[0]}{more}", figures
    return Outcome.PASSED, "", figures
