"""vLLM's model runner V2 gets twins of its kernels only where it is asked for and Triton is not."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches import v2_kernels
from engine_adapter.vllm_engine.patches.triton_check import patch_triton_check


@pytest.mark.parametrize(
    ("asked", "on_cpu", "has_triton", "installed"),
    [
        (True, True, False, True),
        (None, True, False, False),  # vLLM's default, in Specgate's engine too
        (False, True, False, False),
        (True, False, False, False),
        (True, True, True, False),  # a Triton with a backend for CPUs
    ],
)
def test_twins_are_installed_on_a_cpu_without_triton_that_runs_v2(
    monkeypatch: pytest.MonkeyPatch,
    asked: bool | None,
    on_cpu: bool,
    has_triton: bool,
    installed: bool,
) -> None:
    calls: list[None] = []
    config, worker = SimpleNamespace(HAS_TRITON=has_triton), SimpleNamespace(HAS_TRITON=has_triton)
    replaced = {
        "envs": SimpleNamespace(VLLM_USE_V2_MODEL_RUNNER=asked),
        "current_platform": SimpleNamespace(is_cpu=lambda: on_cpu),
        "triton_utils": SimpleNamespace(HAS_TRITON=has_triton),
        "vllm_config": config,
        "gpu_worker": worker,
    }
    for name, value in replaced.items():
        monkeypatch.setitem(vars(compat), name, value)
    monkeypatch.setattr(v2_kernels, "patch_v2_kernels", lambda: calls.append(None))
    patch_triton_check()  # of a process without the kernels
    assert config.HAS_TRITON is (installed or has_triton)
    assert worker.HAS_TRITON is has_triton
    config.HAS_TRITON = has_triton
    v2_kernels.patch_v2_runner()
    assert bool(calls) is installed
    assert config.HAS_TRITON is worker.HAS_TRITON is (installed or has_triton)


@pytest.mark.needs_vllm
def test_a_kernel_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    row = (compat.v2_min_p, "_gone_kernel", lambda: None)
    monkeypatch.setattr(v2_kernels, "twins", lambda: [row])
    with pytest.raises(ImportError, match=r"vLLM .* has no vllm\.v1\..*\.min_p\._gone_kernel"):
        v2_kernels.patch_v2_kernels()


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_the_next_power_of_2(number: int, power: int) -> None:
    assert v2_kernels._next_power_of_2(number) == power


ASKED_FOR_AMX = """
import ctypes, os
from engine_adapter.vllm_engine.worker import v2_on_cpu
states = ctypes.c_uint64()
assert ctypes.CDLL(None).syscall(ARCH_PRCTL, GET_PERMISSIONS, ctypes.byref(states)) == 0
os._exit(states.value >> AMX_TILES & 1)
"""
"""Ends with status 1 if the process may use AMX (Linux, Documentation/arch/x86/xstate.rst)."""


@pytest.mark.needs_vllm
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="the CPU has no AMX")
def test_a_worker_may_use_amx() -> None:
    numbers = "ARCH_PRCTL, GET_PERMISSIONS, AMX_TILES = 158, 0x1022, 18\n"
    environment = {**os.environ, "VLLM_USE_V2_MODEL_RUNNER": "1"}
    command = [sys.executable, "-c", numbers + ASKED_FOR_AMX]
    assert subprocess.run(command, env=environment, timeout=120, check=False).returncode == 1


@pytest.mark.needs_vllm
def test_values_of_requests_are_read_where_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = compat.v2_buffer_utils.UvaBackedTensor
    monkeypatch.setattr(kind, "copy_to_uva", kind.copy_to_uva)  # restored at the end
    v2_kernels.patch_v2_kernels()
    backed = kind.__new__(kind)
    backed.gpu = backed.cpu = torch.zeros(4, dtype=torch.int32)
    backed.np = backed.cpu.numpy()
    backed.np[:] = 1, 2, 3, 4
    assert backed.copy_to_uva().tolist() == backed.gpu.tolist() == [1, 2, 3, 4]
    backed.np[0] = 9
    assert backed.copy_to_uva(2).tolist() == backed.gpu.tolist() == [9, 2]
