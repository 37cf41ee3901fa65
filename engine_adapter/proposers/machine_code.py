"""Functions of arrays that numba compiles on first use. numba comes with vLLM."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, cast

from filelock import FileLock
from llvmlite.binding import ffi
from numba import njit

# When a worker starts, vLLM looks into the `__dict__` of what every module holds (`_rebind_kernels`
# of `triton_utils/dispatcher.py`). llvmlite's library answers each name with a function, at which
# that search fails: a process that has imported numba could start no worker.
ffi.lib._fntab["__dict__"] = {}


def machine_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, for arrays and numbers.

    The machine code is kept on disk beside the source or in the user's cache; where neither can be
    written, each process compiles for itself.
    """
    try:
        code: Callable[..., Any] = njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no folder for the machine code
        return cast("Callable[..., Any]", njit(error_model="numpy")(function))
    _lock_cache(code)
    return code


def _lock_cache(code: Any) -> None:
    """Lets one process at a time read and write the machine code on disk.

    numba 0.65 writes the index of a function's signatures, then the code of a new one. Two
    processes that do it at once, such as the ranks of an engine, can leave an index that names the
    code of another signature, for this start and all later ones.
    """
    cache = code._cache
    lock = FileLock(Path(cache.cache_path) / "numba.lock")

    def locked(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any) -> Any:
            with lock:
                return method(*arguments)

        return call

    cache.load_overload = locked(cache.load_overload)
    cache.save_overload = locked(cache.save_overload)
