"""vLLM's Ray executor on CPU.

vLLM asks Ray for the platform's device by `ray_device_key`, and its CPU platform has none
(vllm/v1/executor/ray_utils.py, `initialize_ray_cluster`). Ray counts a node's cores as its resource
CPU, so here each worker gets a bundle of one of them. On a GPU vLLM's own executor runs.
"""

import os
from functools import cache
from typing import Any

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.ray_on_cpu import patch_ray_device, patch_ray_worker

BEFORE_TORCH = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
"""Variables that a worker's libraries read when they load, before vLLM passes on the others."""


def executor_class() -> type:
    """The executor; created on first use, because vLLM's module fails to import without Ray."""

    class CPURayExecutor(compat.RayExecutorV2):
        """vLLM's executor with workers on cores."""

        def _init_executor(self) -> None:
            """Starts the workers, as vLLM does."""
            patch_ray_device()
            with patch_ray_worker(_ray_class("CPURayWorker")):
                super()._init_executor()

        def _build_runtime_env(self) -> dict[str, Any]:
            """vLLM's environment of a worker, and what must be set when its process starts."""
            runtime_env: dict[str, Any] = super()._build_runtime_env()
            variables = {name: os.environ[name] for name in BEFORE_TORCH if name in os.environ}
            runtime_env["env_vars"] = variables | runtime_env.get("env_vars", {})
            return runtime_env

        @staticmethod
        def _get_actor_resource_kwargs() -> dict[str, Any]:
            """Nothing: a worker's core is that of its bundle."""
            return {"num_gpus": 0}

    return CPURayExecutor


def worker_class() -> type:
    """The class of the workers' actors."""

    class CPURayWorker(compat.RayWorkerProc):
        """vLLM's worker in an actor of Ray."""

        def get_node_and_physical_gpu_ids(self) -> tuple[str, list[int]]:
            """The node's id, and no GPU."""
            return compat.ray_executor_v2.ray.get_runtime_context().get_node_id(), []

        def initialize_worker(
            self,
            local_rank: int,
            env_vars: dict[str, str],
            distributed_init_method: str,
            driver_env_vars: dict[str, str] | None = None,
            assigned_physical_gpu_ids: list[int] | None = None,
        ) -> None:
            """Starts the worker with no list of GPUs: vLLM reads an empty one as memory nodes."""
            super().initialize_worker(
                local_rank, env_vars, distributed_init_method, driver_env_vars
            )

    return CPURayWorker


@cache
def _ray_class(name: str) -> type:
    makers = {"CPURayExecutor": executor_class, "CPURayWorker": worker_class}
    ray_class = makers[name]()
    # Ray sends a class by its module and name, so it must be found here under that name.
    ray_class.__qualname__ = name
    return ray_class


def __getattr__(name: str) -> Any:
    """`CPURayExecutor`, as `distributed_executor_backend` names it, and `CPURayWorker`."""
    if name not in ("CPURayExecutor", "CPURayWorker"):
        raise AttributeError(name)
    return _ray_class(name)
