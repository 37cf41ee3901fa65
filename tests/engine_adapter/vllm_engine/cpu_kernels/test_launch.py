"""A twin has its kernel's parameters, or it is refused."""

from typing import Any

import pytest

from engine_adapter.vllm_engine.cpu_kernels.launch import CpuKernel


def kernel(x_ptr: Any, x_stride_0: int, y_ptr: Any, count: int, BLOCK_SIZE: int) -> None: ...


def test_a_launch_reaches_the_twin_by_the_names_of_its_parameters() -> None:
    seen: list[Any] = []

    def twin(count: int, x: Any, grid: tuple[int], y: Any, later: int = 3) -> None:
        seen.append((count, x, grid, y, later))

    CpuKernel(kernel, twin)[(4,)]("x", 1, "y", 7, BLOCK_SIZE=1024, num_warps=1)
    assert seen == [(7, "x", (4,), "y", 3)]


def test_a_parameter_that_the_twin_does_not_know_is_an_error() -> None:
    with pytest.raises(ImportError, match=r"kernel of vLLM .* the twin does not know \['y'\]"):
        CpuKernel(kernel, lambda x, count: None)


def test_a_parameter_that_the_kernel_lost_is_an_error() -> None:
    with pytest.raises(ImportError, match=r"the kernel does not have \['offset'\]"):
        CpuKernel(kernel, lambda x, y, count, offset: None)


@pytest.mark.needs_vllm
def test_every_kernel_has_its_twin() -> None:
    from engine_adapter.vllm_engine.patches.v2_kernels import patch_v2_kernels, twins

    patch_v2_kernels()
    patch_v2_kernels()  # a second time changes nothing
    for module, name, _ in twins():
        assert isinstance(getattr(module, name), CpuKernel)
