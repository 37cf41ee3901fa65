"""The memory that this process has allocated, and the return of what it has freed."""

import ctypes
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path

_PROBE_BYTES = 1 << 20
_PROBES = 3


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated_bytes() -> int:
    """What is allocated now, in bytes; takes 0.03 to 0.2 ms, and 2 ms in an engine of 16 proposers.

    What is allocated and freed again leaves no trace in it, and neither does memory that the
    allocator reuses. So the difference around a compilation is what its result takes, however many
    came before. The resident set shows neither: it stays when memory is freed, and does not grow
    when that memory is used again. It is read only where the allocator cannot be asked.
    """
    return _reader()()


def trim() -> None:
    """Gives freed memory back to the operating system. It takes milliseconds and frees the GIL."""
    if hasattr(libc := _libc(), "malloc_trim"):
        libc.malloc_trim(0)


@cache
def _libc() -> ctypes.CDLL:
    # The allocator that the process uses: another one may have been loaded before glibc's.
    return ctypes.CDLL(None)


@cache
def _reader() -> Callable[[], int]:
    if not hasattr(libc := _libc(), "mallinfo2"):
        return _resident_bytes
    libc.mallinfo2.restype = _MallInfo
    # Another thread may free memory meanwhile, and hide a probe.
    for _ in range(_PROBES):
        bytes_before = _heap_bytes()
        probe = bytearray(_PROBE_BYTES)
        if _heap_bytes() - bytes_before >= len(probe):
            return _heap_bytes
    return _resident_bytes


def _heap_bytes() -> int:
    info = _libc().mallinfo2()
    return int(info.uordblks + info.hblkhd)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
