"""Functions of tensors that numba compiles on first use."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from engine_adapter.proposers.machine_code import machine_code


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """The function compiled: it gets numpy's view of each tensor, and writes its results there."""
    machine = machine_code(function)

    @wraps(function)
    def call(*arguments: Any) -> None:
        machine(*[a.numpy() if isinstance(a, torch.Tensor) else a for a in arguments])

    return call
