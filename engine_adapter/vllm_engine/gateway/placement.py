"""Where each of several engines runs: on GPUs of its own, or on cores of its own."""

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from itertools import groupby, pairwise
from typing import Any

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway.ray_backend import uses_ray

THREADS_BIND = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM's variable: `auto`, `nobind`, or the CPUs of each worker, as `0-3|4-7`."""

_SIZE = "data_parallel_size"
_THREADS = "/proc/self/task"


def device_ids(config: EngineConfig) -> list[Any]:
    """The GPUs of an engine: numbers among those that the server sees, or what the user named.

    Raises:
        EngineConfigError: there are fewer than all engines need.
    """
    gpus_per_engine = int(config.arguments.get("tensor_parallel_size") or 1)
    needed = gpus_per_engine * config.data_parallel_size
    ids = list(config.arguments.get("device_ids") or range(compat.current_platform.device_count()))
    if len(ids) < needed:
        raise EngineConfigError(
            _SIZE,
            f"{config.data_parallel_size} engines need {needed} GPUs ({_SIZE} times "
            f"tensor_parallel_size), and there are {len(ids)}",
        )
    first_id = config.data_parallel_index * gpus_per_engine
    return ids[first_id : first_id + gpus_per_engine]


def cores(config: EngineConfig) -> frozenset[int] | None:
    """The CPUs on which an engine's threads run; `None` does not bind them.

    The cores that the server may use are dealt out in order of their memory node; the hardware
    threads of one core stay together. `VLLM_CPU_OMP_THREADS_BIND` can name others.

    Raises:
        EngineConfigError: there are fewer cores than engines or memory nodes than ranks, or the
            variable does not fit.
    """
    size, index = config.data_parallel_size, config.data_parallel_index
    binding = os.environ.get(THREADS_BIND, "auto")
    ranks = int(config.arguments.get("tensor_parallel_size") or 1)
    if size == 1 and binding == "auto":
        _check_memory_nodes(config, ranks)
    if size == 1 or binding == "nobind":
        return None
    if ranks > 1:
        raise EngineConfigError(
            _SIZE,
            "with tensor_parallel_size on CPU, vLLM binds the threads of every engine to the same "
            f"memory nodes: set {THREADS_BIND}=nobind",
        )
    if binding != "auto":
        parts = binding.split("|")
        if len(parts) != size:
            message = f"{THREADS_BIND} must name the CPUs of each of {size} engines, got {binding}"
            raise EngineConfigError(_SIZE, message)
        return frozenset(compat.cpu_resource_utils.parse_id_list(parts[index]))
    shares = dealt(compat.cpu_resource_utils.get_allowed_cpu_list(), size)
    if not all(shares):
        count = sum(map(bool, shares))
        message = f"{size} engines need as many cores, and the server may use {count}"
        raise EngineConfigError(_SIZE, message)
    return shares[index]


def _check_memory_nodes(config: EngineConfig, ranks: int) -> None:
    """vLLM binds each rank of this machine to a memory node of its own, and asserts that it can."""
    if ranks == 1 or uses_ray(config.arguments):
        return
    nodes = len(compat.cpu_resource_utils.get_visible_memory_node())
    if nodes < ranks:
        raise EngineConfigError(
            "tensor_parallel_size",
            f"on a CPU, vLLM binds each of {ranks} ranks to a memory (NUMA) node, and there are "
            f"{nodes}: set {THREADS_BIND} to the CPUs of each rank, as 0-3|4-7, or to nobind",
        )


def dealt(cpus: list[Any], size: int) -> list[frozenset[int]]:
    """The CPUs of each of `size` engines, whose numbers of cores differ by at most one.

    Args:
        cpus: vLLM's `LogicalCPUInfo` of each CPU: `id`, `physical_core` and `numa_node`.
    """

    def core(cpu: Any) -> tuple[int, int]:
        return cpu.numa_node, cpu.physical_core

    threads_by_core = [
        {cpu.id for cpu in group} for _, group in groupby(sorted(cpus, key=core), core)
    ]
    ends = [len(threads_by_core) * i // size for i in range(size + 1)]
    return [frozenset[int]().union(*threads_by_core[begin:end]) for begin, end in pairwise(ends)]


@contextmanager
def on_cores(cpus: Set[int] | None) -> Iterator[None]:
    """Processes that this thread starts in the block run on these CPUs, as under `taskset`.

    Threads of this process that begin in the block are bound too, until its end.
    """
    if cpus is None:
        yield
        return
    old_cpus, old_threads = os.sched_getaffinity(0), set(os.listdir(_THREADS))
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, old_cpus)
        for thread in map(int, set(os.listdir(_THREADS)) - old_threads):
            with suppress(ProcessLookupError):
                if os.sched_getaffinity(thread) == cpus:
                    os.sched_setaffinity(thread, old_cpus)
