"""Machine code on disk, which processes share."""

import importlib
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_adapter.proposers import machine_code

pytestmark = pytest.mark.needs_vllm

SOURCE = """
from engine_adapter.proposers.machine_code import machine_code

@machine_code
def add(values, more):
    for i in range(len(values)):
        values[i] += more[i]
"""
DTYPES = (np.int32, np.int64, np.float32, np.float64)
ROUNDS = 6


def call(path: Path, number: int, barrier: Any, statuses: Any) -> None:
    """Adds two arrays of the dtypes with this number in a process of its own."""
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    values = np.ones(3, DTYPES[number])
    more = np.ones(3, DTYPES[-1 - number])
    barrier.wait()
    module.add(values, more)
    statuses[number] = int(values.tolist() == [2, 2, 2])


def calls_at_once(path: Path) -> list[int]:
    """Whether each of the processes, which call at the same time, has the sum."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(DTYPES))
    statuses: Any = context.Array("i", len(DTYPES))
    processes = [
        context.Process(target=call, args=(path, number, barrier, statuses))
        for number in range(len(DTYPES))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return list(statuses[:])


def test_processes_that_compile_at_once_leave_each_signature_its_own_code(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        path = tmp_path / f"probe_{number}.py"
        path.write_text(SOURCE)
        for _ in range(2):  # compiled, then read from disk
            assert calls_at_once(path) == [1] * len(DTYPES)


def test_a_function_is_compiled_without_a_folder_for_its_machine_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = vars(machine_code)["njit"]

    def njit(cache: bool = False, **options: Any) -> Any:
        def refuse(function: Any) -> Any:
            raise RuntimeError("cannot cache function: no locator available")

        return refuse if cache else real(**options)

    monkeypatch.setattr(machine_code, "njit", njit)

    def fill(values: Any) -> None:
        values[:] = 5

    values = np.zeros(3, np.int32)
    machine_code.machine_code(fill)(values)
    assert values.tolist() == [5, 5, 5]
