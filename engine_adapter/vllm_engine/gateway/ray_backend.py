"""Ray as vLLM's executor: what it needs, and its workers, which are not the engine's children."""

import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from importlib.util import find_spec
from typing import Any

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway.process_tree import ProcessTree

BACKEND = "distributed_executor_backend"
"""vLLM's argument that chooses an executor."""

_OLD_EXECUTOR = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
"""The variable with which vLLM 0.32 can be asked for its executor over compiled graphs."""


def uses_ray(arguments: Mapping[str, Any]) -> bool:
    """Whether the engine's workers are Ray's."""
    return arguments.get(BACKEND) == "ray"


def executor(config: EngineConfig) -> str:
    """What vLLM's argument says for Ray: its own executor, or on CPU the one of `core`.

    Raises:
        EngineConfigError: Ray is not installed, the environment asks for the executor over compiled
            graphs, or there are several engines.
    """
    if config.data_parallel_size > 1:
        raise EngineConfigError(
            "data_parallel_size",
            f"must be 1 with {BACKEND} ray, because Ray places the ranks; run replicas under Ray "
            "Serve instead",
        )
    if find_spec("ray") is None:
        raise EngineConfigError(BACKEND, "ray is not installed; install specgate[ray]")
    is_read = _OLD_EXECUTOR in compat.envs.environment_variables
    if is_read and os.environ.get(_OLD_EXECUTOR, "1") != "1":
        raise EngineConfigError(
            BACKEND, f"{_OLD_EXECUTOR} must be 1: the executor over compiled graphs is not proven"
        )
    if compat.current_platform.is_cpu():
        return "engine_adapter.vllm_engine.core.ray_executor.CPURayExecutor"
    return "ray"


async def tree_of(
    pid: int, config: EngineConfig, collective_rpc: Callable[[str], Awaitable[list[Any]]]
) -> ProcessTree:
    """An engine process with its workers. Ray's are not its children, and may be elsewhere.

    Args:
        pid: of the engine process.
        collective_rpc: runs a method of every worker.
    """
    if not uses_ray(config.arguments):
        return ProcessTree(pid)
    workers = await collective_rpc("specgate_process")
    local_workers = [worker for host, worker in workers if host == socket.gethostname()]
    return ProcessTree(pid, *local_workers, complete=len(local_workers) == len(workers))
