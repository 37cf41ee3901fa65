"""Names in vLLM's modules that are replaced while vLLM's own code runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine_adapter.vllm_engine import compat


@contextmanager
def patch_cpu_runner(runner: type) -> Iterator[None]:
    """Within it, vLLM's CPU worker creates a `runner`, a subclass of vLLM's."""
    module = compat.v2_cpu_model_runner
    original = module.CPUModelRunner
    module.CPUModelRunner = runner
    try:
        yield
    finally:
        module.CPUModelRunner = original


@contextmanager
def patch_init_speculator(speculator: Any) -> Iterator[None]:
    """Within it, a model runner V2 gets `speculator` instead of one of vLLM's."""
    original = compat.v2_model_runner.init_speculator
    compat.v2_model_runner.init_speculator = lambda *_: speculator
    try:
        yield
    finally:
        compat.v2_model_runner.init_speculator = original


@contextmanager
def patch_sampler(sampler: type) -> Iterator[None]:
    """Within it, a model runner V2 makes a `sampler`, a subclass of vLLM's, as its plain one."""
    original = compat.v2_model_runner.Sampler
    compat.v2_model_runner.Sampler = sampler
    try:
        yield
    finally:
        compat.v2_model_runner.Sampler = original


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
