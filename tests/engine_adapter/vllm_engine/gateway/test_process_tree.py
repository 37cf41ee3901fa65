"""What is seen of real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from engine_adapter.vllm_engine.gateway.process_tree import ProcessTree, Sight

SPINS = "while True: pass"
SLEEPS = """
import time
while time.process_time() < 0.1: pass
print(flush=True)
time.sleep(600)
"""
HAS_CHILD = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {code!r}]); "
    "print(child.pid, flush=True); child.wait()"
)

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python programs, and ends them."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", code]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def look(tree: ProcessTree) -> Sight:
    sight = tree.look()
    assert sight is not None
    return sight


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), PermissionError(13, "no")])
def test_what_cannot_be_read_is_not_seen(
    start: Start, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def fail(self: psutil.Process) -> None:
        raise error

    tree = ProcessTree(start(SLEEPS).pid)
    look(tree)
    monkeypatch.setattr(psutil.Process, "cpu_times", fail)
    assert tree.look() is None


def test_cpu_time_grows_while_it_computes_and_stands_still_while_it_sleeps(start: Start) -> None:
    spins = ProcessTree(start(SPINS).pid)
    before = look(spins).cpu_s
    until(lambda: look(spins).cpu_s > before + 0.1)
    process = start(SLEEPS)
    first_line(process)
    sleeps = ProcessTree(process.pid)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
    assert look(sleeps).cpu_s > 0
    before = look(sleeps).cpu_s
    time.sleep(0.1)
    assert look(sleeps).cpu_s == before


def test_the_time_of_a_child_counts(start: Start) -> None:
    process = start(HAS_CHILD.format(code=SPINS))
    child = int(first_line(process))
    tree = ProcessTree(process.pid)
    before = look(tree).cpu_s
    until(lambda: look(tree).cpu_s > before + 0.1)
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("which", ["the process", "its child"])
def test_a_stopped_member_is_seen_and_can_be_killed(start: Start, which: str) -> None:
    process = start(HAS_CHILD.format(code=SPINS))
    child = int(first_line(process))
    tree = ProcessTree(process.pid)
    assert not look(tree).stopped
    pid = process.pid if which == "the process" else child
    os.kill(pid, signal.SIGSTOP)
    until(lambda: look(tree).stopped)
    tree.kill()
    assert process.wait(60) == -signal.SIGKILL
    # The child belongs to init now, which ends it.
    until(lambda: look_or_none(child) is None or _is_zombie(child))
    assert tree.look() is None
    tree.kill()


def look_or_none(pid: int) -> Sight | None:
    return ProcessTree(pid).look()


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True
