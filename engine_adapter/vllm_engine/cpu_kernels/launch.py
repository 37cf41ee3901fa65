"""How a twin stands where vLLM has a Triton kernel."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

GPU_ONLY = (
    "BLOCK_SIZE",
    "LOOKAHEAD_BLOCK",
    "PADDED_COLS",
    "NUM_BLOCKS",
    "num_warps",
    "stride",
    "PO2",
    "START_LEN",
    "END_LEN",
)
"""Ends of the names of parameters that only tell a GPU how to divide or address the work, and of
lengths that the tensors have themselves."""

TwinKernel = Callable[..., None]


class CpuKernel:
    """Takes the launches of a kernel, `kernel[grid](...)`, and calls its twin.

    A twin names the kernel's parameters without Triton's suffix `_ptr` and leaves out those of
    `GPU_ONLY`. One with a default may be absent in a release of vLLM. A twin that names `grid` gets
    the size of the launch. Parameters that it takes by keyword only are not the kernel's.
    """

    def __init__(self, kernel: Any, twin: TwinKernel) -> None:
        """Raises `ImportError` if the kernel and its twin do not have the same parameters."""
        names = parameter_names(kernel)
        twin_parameters = {
            name: parameter
            for name, parameter in inspect.signature(twin).parameters.items()
            if parameter.kind is not parameter.KEYWORD_ONLY
        }
        unknown = [name for name in names if name not in twin_parameters and not _is_gpu_only(name)]
        absent = [
            name
            for name, parameter in twin_parameters.items()
            if parameter.default is parameter.empty and name not in (*names, "grid")
        ]
        if unknown or absent:
            name = getattr(kernel, "__name__", kernel)
            raise ImportError(
                f"{name} of vLLM and its twin for CPUs differ: the twin does not know "
                f"{unknown}, the kernel does not have {absent}"
            )
        self._twin = twin
        places = {name: place for place, name in enumerate(names)}
        self._arguments = [
            (places.get(name, len(places)), name, parameter.default)
            for name, parameter in twin_parameters.items()
        ]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """A launch of this size."""
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        # The constants come by name, and the rest in the kernel's order.
        count = len(arguments)
        constants["grid"] = grid
        self._twin(
            *[
                arguments[place] if place < count else constants.get(name, default)
                for place, name, default in self._arguments
            ]
        )


def parameter_names(kernel: Any) -> list[str]:
    """The names of a kernel's parameters, without the suffix of pointers."""
    function = getattr(kernel, "fn", kernel)  # with Triton, the kernel is an object over it
    return [name.removesuffix("_ptr") for name in inspect.signature(function).parameters]


def _is_gpu_only(name: str) -> bool:
    # A stride may end with the number of its axis.
    return name.rstrip("_01").endswith(GPU_ONLY)
