"""vLLM's launches of a kernel, once with the interpreter and once with the twin for CPUs."""

from functools import cache
from importlib import import_module
from typing import Any

import torch

from engine_adapter.vllm_engine.patches.v2_kernels import patch_v2_kernels
from tests.engine_adapter.vllm_engine.support.interpreted import GPU, clones, interpreted


@cache
def with_twins(name: str) -> Any:
    """The module `name` of vLLM's package `GPU`, with twins in place of its kernels."""
    import vllm.v1.worker.cpu.shm  # noqa: F401  # replaces streams and pinned memory, as in a worker

    patch_v2_kernels()
    return import_module(f"{GPU}.{name}")


def check_launch(module: str, function: str, *arguments: Any, **tolerance: float) -> Any:
    """Calls vLLM's `function` on copies of the arguments both ways; all tensors must be equal.

    Floats may differ by `rtol` and `atol`, without which they may not. Returns what the function
    returned with the twin.
    """
    ours, theirs = clones(arguments), clones(arguments)
    expected = getattr(interpreted(module), function)(*theirs)
    actual = getattr(with_twins(module), function)(*ours)
    same((actual, _tensors(ours)), (expected, _tensors(theirs)), **tolerance)
    return actual


def _tensors(arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    return [each for each in arguments if isinstance(each, torch.Tensor)]


def same(actual: Any, expected: Any, rtol: float = 0, atol: float = 0) -> None:
    """Fails unless the tensors are equal, also those in lists and tuples."""
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


def check_kernel(
    module: str, name: str, grid: tuple[int, ...], *arguments: Any, **constants: Any
) -> Any:
    """Launches a kernel on copies of the arguments both ways: what both have written."""
    ours, theirs = clones(arguments), clones(arguments)
    getattr(interpreted(module), name)[grid](*theirs, **constants)
    getattr(with_twins(module), name)[grid](*ours, **constants)
    return ours, theirs
