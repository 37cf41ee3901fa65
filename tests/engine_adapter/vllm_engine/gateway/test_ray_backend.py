"""Ray as the executor: what the arguments become, and which processes are watched."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import ray_backend
from engine_adapter.vllm_engine.gateway.ray_backend import BACKEND, executor, tree_of
from tests.server.gateway import eventually

OURS = "engine_adapter.vllm_engine.core.ray_executor.CPURayExecutor"
OLD_EXECUTOR = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"


@pytest.fixture(autouse=True)
def ray_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "find_spec", lambda name: object())
    monkeypatch.delenv(OLD_EXECUTOR, raising=False)


@pytest.mark.parametrize(("is_cpu", "expected"), [(True, OURS), (False, "ray")])
def test_only_on_cpu_the_executor_is_ours(
    monkeypatch: pytest.MonkeyPatch, is_cpu: bool, expected: str
) -> None:
    platform = SimpleNamespace(is_cpu=lambda: is_cpu)
    monkeypatch.setitem(vars(compat), "current_platform", platform)
    assert executor(config()) == expected


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "find_spec", lambda name: None)
    with pytest.raises(EngineConfigError, match=r"install specgate\[ray\]") as caught:
        executor(config())
    assert caught.value.setting == BACKEND


def vllm_reads(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Pretends that vLLM reads these environment variables."""
    envs = SimpleNamespace(environment_variables=dict.fromkeys(names))
    monkeypatch.setitem(vars(compat), "envs", envs)


def test_the_executor_over_compiled_graphs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_reads(monkeypatch, OLD_EXECUTOR)
    monkeypatch.setenv(OLD_EXECUTOR, "0")
    with pytest.raises(EngineConfigError, match="VLLM_USE_RAY_V2_EXECUTOR_BACKEND must be 1"):
        executor(config())


def test_a_variable_that_vllm_no_longer_reads_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllm_reads(monkeypatch)
    monkeypatch.setenv(OLD_EXECUTOR, "0")
    monkeypatch.setitem(vars(compat), "current_platform", SimpleNamespace(is_cpu=lambda: True))
    assert executor(config()) == OURS


def test_several_engines_are_refused() -> None:
    with pytest.raises(EngineConfigError, match="Ray places the ranks") as caught:
        executor(config(data_parallel_size=2))
    assert caught.value.setting == "data_parallel_size"


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    """An engine process, and a worker that it did not start."""
    code = "import time; time.sleep(3600)"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


def config(**arguments: Any) -> EngineConfig:
    return EngineConfig("m", "m", arguments=arguments)


async def stop(pid: int) -> None:
    """Stops a process; returns when it has stopped, which is not at once."""
    os.kill(pid, signal.SIGSTOP)
    await eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


async def test_without_ray_the_workers_are_children_and_no_worker_is_asked(
    sleepers: list[int],
) -> None:
    async def rpc(method: str) -> list[Any]:
        raise AssertionError(method)

    tree = await tree_of(sleepers[0], config(), rpc)
    await stop(sleepers[1])
    sight = tree.look()
    assert sight is not None
    assert not sight.stopped


async def test_the_actors_of_this_machine_are_watched_and_killed(sleepers: list[int]) -> None:
    async def rpc(method: str) -> list[Any]:
        assert method == "specgate_process"
        return [[socket.gethostname(), sleepers[1]]]

    tree = await tree_of(sleepers[0], config(**{BACKEND: "ray"}), rpc)
    await stop(sleepers[1])
    sight = tree.look()
    assert sight is not None
    assert sight.stopped
    tree.kill()
    for pid in sleepers:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        assert ended is not None
        assert ended.si_status == signal.SIGKILL


async def test_an_engine_with_a_rank_elsewhere_is_never_seen_idle(sleepers: list[int]) -> None:
    async def rpc(method: str) -> list[Any]:
        return [[socket.gethostname(), sleepers[1]], ["another-machine", 1]]

    tree = await tree_of(sleepers[0], config(**{BACKEND: "ray"}), rpc)
    assert tree.look() is None
