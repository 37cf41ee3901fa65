"""The stages of the GPU check: every way in which one ends is a line of the report."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gpu_check import running
from benchmarks.gpu_check.plan import Stage
from benchmarks.gpu_check.running import Outcome, StageResult, run_stage, run_stages

RESULT = {"rows": [{"method": "none", "tokens/s": 3.5}], "problems": []}


def stage(folder: Path, code: str, **fields: Any) -> Stage:
    """A stage that runs some Python, with `result` and `write` at hand."""
    result = folder / "one.json"
    head = (
        "import json, os, sys, time\n"
        f"def write(x): open({str(result)!r}, 'w').write(x if x == 'half' else json.dumps(x))\n"
    )
    command = [sys.executable, "-c", head + code]
    return Stage("one", "a test", command, result, **{"limit_s": 60.0, **fields})


def test_a_stage_without_problems_has_passed(tmp_path: Path) -> None:
    done = run_stage(stage(tmp_path, f"print('begun')\nwrite({RESULT!r})"), tmp_path)
    assert (done.outcome, done.reason, done.rows) == (Outcome.PASSED, "", RESULT["rows"])
    assert done.log_end == ()
    assert (tmp_path / done.log).read_text() == "begun\n"


def test_a_problem_fails_the_stage_and_is_its_reason(tmp_path: Path) -> None:
    found = RESULT | {"problems": ["draft: it never drafted", "eagle: too"]}
    done = run_stage(stage(tmp_path, f"print('begun')\nwrite({found!r})"), tmp_path)
    assert (done.outcome, done.reason) == (Outcome.FAILED, "draft: it never drafted (and 1 more)")
    assert done.problems == found["problems"]
    assert done.log_end == ["begun"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "raise RuntimeError('no kernel')",
            "exit status 1, without a result: RuntimeError: no kernel",
        ),
        ("os.kill(os.getpid(), 11)", "signal 11, without a result"),
        ("pass", "exit status 0, without a result"),
        (f"write({RESULT!r}); sys.exit(4)", "exit status 4"),
        ("write('half'); sys.exit(0)", "exit status 0, without a result"),
    ],
)
def test_a_crash_is_a_line_with_its_log(tmp_path: Path, code: str, reason: str) -> None:
    done = run_stage(stage(tmp_path, f"print('begun', flush=True)\n{code}"), tmp_path)
    assert (done.outcome, done.reason) == (Outcome.CRASHED, reason)
    assert done.log_end[0].startswith("begun")


def test_the_reason_of_a_crash_is_the_error_of_vllms_process(tmp_path: Path) -> None:
    lines = [
        "(EngineCore pid=7) ERROR 11-23 02:38:18 [core.py:1510] Traceback",
        "(EngineCore pid=7) ERROR 11-23 02:38:18 [core.py:1510] ValueError: Free memory is less",
        "AssertionError: a failure at the end of a process, which is not the cause",
        "engine_adapter.seam.errors.EngineStartError: vLLM did not start: see root cause above",
    ]
    done = run_stage(stage(tmp_path, f"print({chr(10).join(lines)!r})\nsys.exit(1)"), tmp_path)
    assert done.reason == "exit status 1, without a result: ValueError: Free memory is less"


def test_what_vllm_says_of_memory_and_graphs_is_noted_once(tmp_path: Path) -> None:
    line = "INFO 11-23 02:38:18 [gpu_worker.py:760] Available KV cache memory: 60.2 GiB"
    code = f"print({line!r})\nprint({'(EngineCore pid=7) ' + line!r})\nwrite({RESULT!r})"
    done = run_stage(stage(tmp_path, code), tmp_path)
    assert done.notes == ["Available KV cache memory: 60.2 GiB"]


def test_the_result_of_an_earlier_check_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(RESULT))
    assert run_stage(stage(tmp_path, "pass"), tmp_path).outcome is Outcome.CRASHED


def test_a_stage_that_does_not_end_is_ended(tmp_path: Path) -> None:
    done = run_stage(stage(tmp_path, "time.sleep(600)", limit_s=0.2), tmp_path)
    assert (done.outcome, done.reason) == (Outcome.TIMED_OUT, "not done after 0 s")


def ended(pid: int) -> bool:
    """Whether the process has ended, or does so soon."""
    if not psutil.pid_exists(pid):
        return True
    _, alive = psutil.wait_procs([psutil.Process(pid)], timeout=60)
    return not alive


def test_a_stage_that_is_ended_leaves_nothing_in_another_process_group(tmp_path: Path) -> None:
    child = "[sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True"
    code = (
        "import subprocess, sys, time\n"
        f"print(subprocess.Popen({child}).pid, flush=True)\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as told:
        pid = int(told.readline())
    running._end(process)
    assert process.returncode is not None
    assert ended(pid)


def test_what_a_crashed_stage_left_running_is_ended(tmp_path: Path) -> None:
    code = (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "os._exit(1)"
    )
    done = run_stage(stage(tmp_path, code), tmp_path)
    assert done.outcome is Outcome.CRASHED
    (pid,) = map(int, done.log_end)
    assert ended(pid)


def test_rows_can_come_from_the_log(tmp_path: Path) -> None:
    made = stage(
        tmp_path,
        f"print('a')\nprint('b')\nwrite({RESULT!r})",
        rows_of_log=lambda lines: [{"line": line} for line in lines],
    )
    assert run_stage(made, tmp_path).rows == [{"line": "a"}, {"line": "b"}]


def test_a_stage_that_needs_more_devices_is_skipped_and_the_next_one_runs(tmp_path: Path) -> None:
    seen: list[StageResult] = []
    crash = stage(tmp_path, "sys.exit(1)")
    pair = stage(tmp_path, f"write({RESULT!r})", devices=2)
    good = stage(tmp_path, f"write({RESULT!r})")
    begun: list[Stage] = []
    run_stages([crash, pair, good], tmp_path, 1, seen.append, begun.append)
    assert begun == [crash, good]
    assert [one.outcome for one in seen] == [Outcome.CRASHED, Outcome.SKIPPED, Outcome.PASSED]
    assert seen[1].reason == "needs 2 devices, there is 1"
