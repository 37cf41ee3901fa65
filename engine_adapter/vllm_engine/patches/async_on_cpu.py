"""Asynchronous scheduling on a CPU, where vLLM turns it off: it brings nothing there, but works."""

from typing import Any

from engine_adapter.vllm_engine import compat


def patch_async_scheduling() -> None:
    """Lets a configuration on a CPU schedule asynchronously if its arguments say so.

    Must run in each process that makes one or changes it: in the gateway's, and in workers, where a
    draft model has a changed copy of the target's.
    """
    if not compat.current_platform.is_cpu():
        return
    platform = compat.CpuPlatform
    original = platform.check_and_update_config
    if getattr(original, "keeps_async_scheduling", False):
        return

    def check_and_update_config(vllm_config: Any) -> None:
        is_async = vllm_config.scheduler_config.async_scheduling
        original(vllm_config)
        vllm_config.scheduler_config.async_scheduling = is_async

    check_and_update_config.keeps_async_scheduling = True  # type: ignore[attr-defined]
    platform.check_and_update_config = staticmethod(check_and_update_config)
