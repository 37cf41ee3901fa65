"""vLLM's kernels of model runner V2 in Triton's interpreter: the oracle of their twins for CPUs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch

GPU = "vllm.v1.worker.gpu"
"""The package whose kernels are interpreted."""


@cache
def interpreted(name: str) -> Any:
    """The module `name` of vLLM's package `GPU`, imported a second time with the interpreter.

    All modules of the package that it imports are second ones too. The first ones stay as they are.
    """
    with _second_imports():
        import vllm.v1.worker.cpu.buffer_utils as without_pinning

        vars(import_module(f"{GPU}.buffer_utils"))["UvaBuffer"] = without_pinning.UvaBuffer
        return import_module(f"{GPU}.{name}")


_SECOND: dict[str, ModuleType] = {}
"""The modules that `interpreted` has imported."""


@contextmanager
def _second_imports() -> Iterator[None]:
    import vllm.v1.worker as parent
    from vllm.triton_utils import importing

    import_module(GPU)
    first = {name: module for name, module in sys.modules.items() if _is_second(name)}
    for name in first:
        del sys.modules[name]
    package = parent.gpu
    interpret = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    placeholders = dict(vars(importing))
    try:
        sys.modules.update(_SECOND or _interpreting_triton())
        yield
    finally:
        _SECOND.update({name: module for name, module in sys.modules.items() if _is_second(name)})
        for name in _SECOND:
            sys.modules.pop(name, None)
        sys.modules.update(first)
        parent.gpu = package
        vars(importing).update(placeholders)
        if interpret is None:
            del os.environ["TRITON_INTERPRET"]


def _is_second(name: str) -> bool:
    compiled = name.startswith("triton._C")  # can be loaded once only
    packages = (GPU, "vllm.triton_utils", "triton")
    return not compiled and any(name == each or name.startswith(f"{each}.") for each in packages)


def _interpreting_triton() -> dict[str, ModuleType]:
    """`vllm.triton_utils` with Triton's interpreter, though no backend is there for a CPU."""
    triton = import_module("triton")
    take_any_mask()
    utilities = ModuleType("vllm.triton_utils")
    values = {
        "triton": triton,
        "tl": triton.language,
        "tldevice": _DeviceLibrary,
        "HAS_TRITON": True,
    }
    vars(utilities).update(values)
    return {"vllm.triton_utils": utilities}


def take_any_mask() -> None:
    """Lets the interpreter that is imported now take masks of integers."""
    interpreter = import_module("triton.runtime.interpreter")
    vars(interpreter)["_interpreter"] = _AnyMask(vars(interpreter)["_interpreter"])


class _DeviceLibrary:
    """What kernels call of a GPU's library, which the interpreter does not have."""

    @staticmethod
    def log1p(x: Any) -> Any:
        """The logarithm of 1 + x."""
        language = import_module("triton.language")
        builder = vars(import_module("triton.runtime.interpreter"))["interpreter_builder"]
        return language.tensor(builder.unary_op(x.handle, np.log1p), x.type)


class _AnyMask:
    """The interpreter's memory, also for the masks of integers that it makes with a scalar."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def load(self, pointers: Any, mask: Any, *rest: Any) -> Any:
        """Reads where the mask is not 0."""
        return self._memory.load(pointers, mask.astype(bool), *rest)

    def store(self, pointers: Any, values: Any, mask: Any) -> None:
        """Writes where the mask is not 0."""
        self._memory.store(pointers, values, mask.astype(bool))


def clones(arguments: Any) -> Any:
    """The arguments with a copy of each tensor, in lists and tuples too."""
    if isinstance(arguments, torch.Tensor):
        return arguments.clone()
    if isinstance(arguments, list | tuple):
        return type(arguments)(clones(each) for each in arguments)
    return arguments
