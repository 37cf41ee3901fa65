"""The process that imports vLLM early, and becomes that of the engine."""

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import setproctitle

from engine_adapter.seam.config import EngineConfig
from engine_adapter.vllm_engine.gateway.early_process import EarlyProcess, early_process

STATUS = 7
"""The exit status of `report`."""

TIMEOUT_S = 60


def import_nothing() -> None:
    """Imports nothing."""


def import_torch() -> None:
    """Imports torch, which reads `OMP_NUM_THREADS`."""
    import_module("torch")


def fail() -> None:
    """Fails as an import does."""
    import_module("no_such_module")


def report(path: Path, queue: Any = None) -> None:
    """Writes what the process that runs it has, and ends with a status of its own."""
    setproctitle.setproctitle("a title")  # vLLM sets one
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    facts = {
        "pid": os.getpid(),
        "parent": multiprocessing.parent_process().pid,  # type: ignore[union-attr]
        "name": multiprocessing.current_process().name,
        "variable": os.environ.get("EARLY_TEST"),
        "removed_variable": os.environ.get("EARLY_TEST_REMOVED"),
        "title": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode(),
        "masked": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "threads": threads,
        "has_queue": queue is not None,
    }
    path.write_text(json.dumps(facts))
    sys.exit(STATUS)


@pytest.fixture
def early() -> Iterator[EarlyProcess]:
    process = EarlyProcess(import_nothing)
    yield process
    process.close()


def pid_of(early: EarlyProcess) -> int:
    """The process's id."""
    pid: int = early._process.pid
    return pid


def ended(early: EarlyProcess, timeout_s: float = 0) -> bool:
    """Whether the process has ended by then."""
    early._process.join(timeout_s)
    return not early._process.is_alive()


def run(early: EarlyProcess, path: Path, **arguments: Any) -> dict[str, Any]:
    """Runs `report` in a process of the context; returns what it has written."""
    context: Any = early.context()
    process = context.Process(target=report, name="Work", kwargs={"path": path, **arguments})
    process.start()
    process.join(TIMEOUT_S)
    assert process.exitcode == STATUS
    facts: dict[str, Any] = json.loads(path.read_text())
    assert process.pid == facts["pid"]
    return facts


def test_it_becomes_the_first_process_and_the_next_one_is_spawned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EARLY_TEST_REMOVED", "set at its start")
    early = EarlyProcess(import_nothing)
    monkeypatch.delenv("EARLY_TEST_REMOVED")
    monkeypatch.setenv("EARLY_TEST", "set after its start")
    facts = run(early, tmp_path / "facts")
    assert facts["pid"] == pid_of(early)
    assert facts["parent"] == os.getpid()
    assert facts["variable"] == "set after its start"
    assert facts["removed_variable"] is None
    assert facts["name"] == "Work"
    assert facts["title"] == "a title"
    assert facts["masked"]
    next_facts = run(early, tmp_path / "facts")
    assert next_facts["pid"] != pid_of(early)
    assert next_facts["variable"] == "set after its start"


def test_it_has_the_number_of_threads_that_was_set_after_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    early = EarlyProcess(import_torch)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert run(early, tmp_path / "facts")["threads"] == 3


def test_an_import_that_fails_is_left_to_the_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    early = EarlyProcess(fail)
    assert run(early, tmp_path / "facts")["pid"] == pid_of(early)
    assert capfd.readouterr().err == ""


def test_a_process_is_spawned_if_it_has_ended(early: EarlyProcess, tmp_path: Path) -> None:
    early.close()
    assert run(early, tmp_path / "facts")["pid"] != pid_of(early)


def test_a_process_with_another_executable_is_spawned(early: EarlyProcess, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nEARLY_TEST=script exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    executable = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(str(script))
    try:
        facts = run(early, tmp_path / "facts")
    finally:
        multiprocessing.set_executable(executable)
    assert facts["pid"] != pid_of(early)
    assert facts["variable"] == "script"


def test_a_process_with_an_argument_for_children_only_is_spawned(
    early: EarlyProcess, tmp_path: Path
) -> None:
    queue = multiprocessing.get_context("spawn").Queue()
    facts = run(early, tmp_path / "facts", queue=queue)
    assert facts["pid"] != pid_of(early)
    assert facts["has_queue"]


def test_closing_ends_it_unless_it_has_work(early: EarlyProcess, tmp_path: Path) -> None:
    early.close()
    assert ended(early)
    early.close()
    busy = EarlyProcess(import_nothing)
    context: Any = busy.context()
    process = context.Process(target=signal.pause)
    process.start()
    busy.close()
    assert not ended(busy)
    process.kill()
    process.join(TIMEOUT_S)
    assert process.exitcode == -signal.SIGKILL


def test_it_ends_with_the_gateway(early: EarlyProcess) -> None:
    early._sender.close()  # as the kernel does
    assert ended(early, TIMEOUT_S)
    assert early._process.exitcode == 0


@pytest.mark.parametrize(("is_imported", "engines"), [(True, 1), (False, 2)])
def test_there_is_none_beside_an_imported_vllm_or_other_engines(
    monkeypatch: pytest.MonkeyPatch, is_imported: bool, engines: int
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", sys)
    if not is_imported:
        monkeypatch.delitem(sys.modules, "vllm")
    config = EngineConfig("model", "name", (), arguments={"data_parallel_size": engines})
    with early_process(config) as early:
        assert early is None


def test_there_is_one_in_the_block_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with early_process(EngineConfig("model", "name", ())) as early:
        assert early is not None
        assert not ended(early)
    assert ended(early)
