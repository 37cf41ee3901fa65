"""Names in vLLM's modules that are replaced while vLLM's own code runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine_adapter.vllm_engine import compat


@contextmanager
def patch_cpu_runner(runner: type) -> Iterator[None]:
    """Within it, vLLM's CPU worker creates a `runner` as its model runner."""
    original = compat.cpu_worker.CPUModelRunner
    compat.cpu_worker.CPUModelRunner = runner
    try:
        yield
    finally:
        compat.cpu_worker.CPUModelRunner = original


@contextmanager
def patch_tp_group(group: Any) -> Iterator[None]:
    """Within it, vLLM's layers are split over `group`, a tensor-parallel group of vLLM's."""
    original = compat.parallel_state._TP
    compat.parallel_state._TP = group
    try:
        yield
    finally:
        compat.parallel_state._TP = original


@contextmanager
def patch_speculative_config(config: type) -> Iterator[None]:
    """Within it, vLLM's `SpeculativeConfig` calls the static methods of `config`, a subclass.

    It calls them by the name of the class, so otherwise the subclass does not override them.
    """
    original = compat.speculative.SpeculativeConfig
    compat.speculative.SpeculativeConfig = config
    try:
        yield
    finally:
        compat.speculative.SpeculativeConfig = original
