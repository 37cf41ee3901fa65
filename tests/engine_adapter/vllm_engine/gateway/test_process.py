"""The cause of a death, as the log and the clients have it; and the watch over a process."""

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineDead
from engine_adapter.vllm_engine.gateway import process as process_module
from engine_adapter.vllm_engine.gateway.process import EngineProcess, describe_end
from engine_adapter.vllm_engine.gateway.stat_logger import VllmMetrics


@pytest.mark.parametrize(
    ("status", "reported", "expected"),
    [
        (-signal.SIGKILL, True, "killed by signal 9 (SIGKILL), as the kernel does when memory"),
        (
            -signal.SIGILL,
            True,
            "signal 4 (SIGILL): it ran an instruction that this CPU does not have",
        ),
        (-signal.SIGSEGV, True, "killed by signal 11 (SIGSEGV)"),
        (1, True, "failed with an error, whose traceback is in the log"),
        # It has said that it fails, and takes long to end.
        (None, True, "failed with an error, whose traceback is in the log"),
        (None, False, "sent a message that could not be read"),
        (3, True, "ended with exit status 3"),
        (0, True, "ended with exit status 0"),
    ],
)
def test_the_cause_says_what_happened(status: int | None, reported: bool, expected: str) -> None:
    assert expected in describe_end([status], reported=reported)


def test_of_several_processes_the_one_that_failed_is_described() -> None:
    assert "SIGTERM" in describe_end([0, -signal.SIGTERM], reported=True)


class Watched:
    """What `_kill_when_hung` kills; the first `failures` times it cannot."""

    def __init__(self, failures: int = 0) -> None:
        self._failures = failures
        self.kills = 0

    def kill(self) -> None:
        if self._failures:
            self._failures -= 1
            raise OSError(24, "Too many open files")
        self.kills += 1


def watched_by(monkeypatch: pytest.MonkeyPatch, *findings: Exception | str) -> EngineProcess:
    """A process whose heartbeat finds these things, one after the other."""
    found = list(findings)

    async def hung() -> str:
        finding = found.pop(0)
        if isinstance(finding, Exception):
            raise finding
        return finding

    heartbeat = SimpleNamespace(hung=hung)
    monkeypatch.setattr(process_module, "Heartbeat", lambda *_: heartbeat)
    metrics = VllmMetrics(CollectorRegistry(), lambda _: None)
    return EngineProcess(EngineConfig("m", "m"), 5, metrics)


async def watch(process: EngineProcess, tree: Watched) -> None:
    watched: Any = tree
    await asyncio.wait_for(process._kill_when_hung(watched, 0.0), 20)


async def test_a_watch_that_fails_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    process = watched_by(
        monkeypatch, RuntimeError("a"), OSError(24, "b"), "did not answer", "hangs"
    )
    tree = Watched(failures=1)
    await watch(process, tree)
    assert (tree.kills, process._hang) == (1, "hangs")


async def test_the_watch_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Watched()
    await watch(watched_by(monkeypatch, EngineDead("it died")), tree)
    assert tree.kills == 0


@pytest.mark.needs_vllm
async def test_a_started_engine_knows_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM would ask for them with the first request, and a rank that dies then would fail it."""
    asked: list[str] = []

    async def get_supported_tasks() -> tuple[str, ...]:
        asked.append("tasks")
        return ("generate",)

    process = watched_by(monkeypatch)
    handler = asyncio.create_task(asyncio.sleep(60))
    llm: Any = SimpleNamespace(
        output_handler=handler,
        _run_output_handler=lambda: None,
        get_supported_tasks=get_supported_tasks,
    )

    async def load(pipe: Any) -> None:
        process._llm = llm

    monkeypatch.setattr(process, "_load_in_thread", load)
    monkeypatch.setattr(EngineProcess, "_processes", ())
    await process.start(lambda stage: None)
    handler.cancel()
    assert asked == ["tasks"]
