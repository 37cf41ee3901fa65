"""The memory for proposers that are loaded while the engine serves.

vLLM has given what it measured to the KV cache when such a load begins. What is left is compared
with what the proposer needs before any of it is taken: a load that does not fit is refused, and no
step runs out of memory.
"""

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import psutil
import torch

from engine_adapter.vllm_engine import compat

_GIB = 1 << 30

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""The limit of a container, the file beside it with what it uses, and the part of it in the file
`memory.stat` that the kernel takes back when it needs it. In both versions of control groups."""


class NoRoom(Exception):
    """A proposer does not fit into the memory that is left. The text has both sizes."""


def check_room(needed: int, device: torch.device, step_bytes: int) -> None:
    """Raises `NoRoom` unless `needed` bytes of a device can be taken; 0 bytes always can.

    Args:
        step_bytes: what a step needs at most beside weights and KV.
    """
    if not needed:
        return
    free = free_bytes(device, step_bytes)
    if needed > free:
        memory = "memory" if device.type == "cpu" else f"the memory of {device}"
        raise NoRoom(
            f"needs {needed / _GIB:.2f} GiB of {memory}, of which {max(free, 0) / _GIB:.2f} "
            "GiB are free; unload another proposer, or restart the server with a smaller KV cache"
        )


def free_bytes(device: torch.device, step_bytes: int) -> int:
    """How many bytes of a device nothing uses, and no step will.

    Memory that torch holds and does not use stays for the steps.
    """
    if device.type == "cpu":
        return _free_on_host()
    snapshot = compat.MemorySnapshot(device=device)
    idle = snapshot.torch_memory - snapshot.torch_allocated
    free: int = snapshot.free_memory - max(step_bytes - idle, 0)
    return free


def _free_on_host() -> int:
    """The least of what the system, the container and the limit of the process leave."""
    free_bytes = [psutil.virtual_memory().available]
    for limit, usage, reclaimable in _CGROUPS:
        path = Path(limit)
        if path.is_file() and (text := path.read_text().strip()) != "max":
            used_bytes = int((path.parent / usage).read_text())
            statistics = (path.parent / "memory.stat").read_text().splitlines()
            parts = dict(line.split() for line in statistics)
            free_bytes.append(int(text) - used_bytes + int(parts.get(reclaimable, 0)))
    limit_of_process, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_of_process != resource.RLIM_INFINITY:
        free_bytes.append(limit_of_process - psutil.Process().memory_info().vms)
    return min(free_bytes)


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """A scope whose work on the device waits for no step, and is done when the scope ends."""
    if device.type == "cpu":
        yield
        return
    stream = torch.Stream(device=device)
    with stream:
        yield
    stream.synchronize()


def release_memory(device: torch.device) -> None:
    """Returns freed memory to the device and to the operating system.

    torch keeps what is freed on a device. glibc keeps memory that threads other than the main
    thread have freed, such as the weights that a load has read; it is trimmed in a thread.
    """
    if device.type != "cpu":
        torch.accelerator.empty_cache()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        Thread(target=trim, args=(0,), name="malloc-trim", daemon=True).start()
