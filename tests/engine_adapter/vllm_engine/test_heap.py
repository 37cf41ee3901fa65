"""The memory of a process, as its allocator and as the operating system see it."""

import ctypes
import mmap
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from engine_adapter.vllm_engine import heap

MIB = 1 << 20


def test_what_is_allocated_is_seen_and_what_is_freed_is_not() -> None:
    before = heap.allocated_bytes()
    block = bytearray(30 * MIB)
    assert heap.allocated_bytes() - before == pytest.approx(30 * MIB, abs=2 * MIB)
    del block
    assert heap.allocated_bytes() - before == pytest.approx(0, abs=2 * MIB)


def silent_mallinfo() -> heap._MallInfo:
    """As glibc's answers while another allocator serves the process."""
    return heap._MallInfo()


@pytest.mark.parametrize("libc", [SimpleNamespace(), SimpleNamespace(mallinfo2=silent_mallinfo)])
def test_without_an_allocator_that_answers_the_resident_set_is_read(
    monkeypatch: pytest.MonkeyPatch, libc: SimpleNamespace
) -> None:
    monkeypatch.setattr(heap, "_libc", lambda: libc)
    heap._reader.cache_clear()
    try:
        before = heap.allocated_bytes()
        assert before > MIB
        block = mmap.mmap(-1, 64 * MIB)
        block.write(bytes(64 * MIB))
        assert heap.allocated_bytes() - before > 50 * MIB
        block.close()
    finally:
        heap._reader.cache_clear()


@pytest.mark.parametrize(
    ("sizes", "reader"),
    [
        ([5, 5, 5, 6], heap._heap_bytes),
        ([5, 5, 5, 4, 5, 6], heap._heap_bytes),
        ([5, 5, 5, 4, 5, 5], heap._resident_bytes),
    ],
    ids=["second probe", "third probe", "no probe"],
)
def test_a_thread_that_frees_memory_hides_a_probe_of_the_allocator(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], reader: Callable[[], int]
) -> None:
    answers = iter(sizes)

    class Libc:
        @staticmethod
        def mallinfo2() -> heap._MallInfo:
            return heap._MallInfo(uordblks=next(answers) * MIB)

    monkeypatch.setattr(heap, "_libc", Libc)
    heap._reader.cache_clear()
    try:
        assert heap._reader() is reader
    finally:
        heap._reader.cache_clear()


def test_freed_memory_is_given_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(60_000) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 60_000)
    for block in blocks[:-1]:
        libc.free(block)
    before = heap._resident_bytes()
    heap.trim()
    assert before - heap._resident_bytes() > 20 * MIB
    libc.free(blocks[-1])
