"""Ray on vLLM's CPU platform, which has no device for it."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine_adapter.vllm_engine import compat


def patch_ray_device() -> None:
    """Makes cores the device that vLLM asks Ray for, in this process."""
    compat.current_platform.ray_device_key = "CPU"


@contextmanager
def patch_ray_worker(worker: type) -> Iterator[None]:
    """Within it, vLLM's Ray executor makes its actors of `worker`."""
    original = compat.ray_executor_v2.RayWorkerProc
    compat.ray_executor_v2.RayWorkerProc = worker
    try:
        yield
    finally:
        compat.ray_executor_v2.RayWorkerProc = original
