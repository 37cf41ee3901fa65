"""Copies between the CPU and the device that wait for neither, and joins what is there.

A copy from ordinary memory waits until the device has done all the work that it was given before. A
copy from pinned memory takes its place in that work, and the CPU continues. Each copy has a cost of
its own, so arrays that are needed together travel together.
"""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16
"""Bytes; a multiple of the size of every element."""

_PART = 1 << 22
"""Elements of a part of a large copy."""


def to_device(device: torch.device, *arrays: npt.NDArray[Any]) -> list[torch.Tensor]:
    """The arrays as tensors on the device, in their own shapes and dtypes, after one copy.

    On the CPU nothing is copied: the tensors are the arrays' own memory, as of `torch.from_numpy`.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    padded = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    # torch does not reuse pinned memory before the copies from it are done.
    buffer = torch.empty(sum(padded), dtype=torch.uint8, pin_memory=_can_pin(device.type))
    starts, raw = [*accumulate(padded, initial=0)], buffer.numpy()
    for array, start in zip(arrays, starts, strict=False):
        part = raw[start : start + array.nbytes].view(array.dtype)
        part.reshape(array.shape)[...] = array
    copied = buffer.to(device, non_blocking=True)
    return [
        copied[start : start + array.nbytes].view(_dtype(array.dtype)).view(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]


class HostCopy:
    """Copies of tensors that are on their way to the CPU, while the device and the CPU work on.

    Args:
        tensors: on one device; they must not change before the copies are there. On the CPU
            nothing is copied.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._copies, self._ready = tensors, None
        if not tensors[0].is_cpu:
            self._copies = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
            self._ready = torch.Event(tensors[0].device)
            self._ready.record()

    def arrays(self) -> list[npt.NDArray[Any]]:
        """The copies. The first call waits until the device has come to them."""
        if self._ready is not None:
            self._ready.synchronize()
            self._ready = None
        return [copy.numpy() for copy in self._copies]


def fill(device_tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Copies a large tensor on the CPU into one on the device, which may have another dtype.

    Its parts are pinned one by one: to pin all of it would take as much memory again.
    """
    if device_tensor.device.type == "cpu" or not _can_pin(device_tensor.device.type):
        device_tensor.copy_(source)
        return
    target_rows, source_rows = device_tensor.view(-1), source.reshape(-1)
    for start in range(0, len(source_rows), _PART):
        part = source_rows[start : start + _PART].to(device_tensor.dtype).pin_memory()
        target_rows[start : start + _PART].copy_(part, non_blocking=True)


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors [n_i, V] one after the other: [sum of n_i, V].

    Nothing is copied if they lie in memory like this, as the parts of one tensor do.
    """
    first_part = parts[0]
    base, end = first_part.untyped_storage().data_ptr(), first_part.storage_offset()
    for part in parts:
        place = part.untyped_storage().data_ptr(), part.storage_offset()
        if place != (base, end) or not part.is_contiguous():
            return torch.cat(list(parts))
        end += part.numel()
    rows = sum(len(part) for part in parts)
    return first_part.as_strided((rows, first_part.shape[1]), (first_part.shape[1], 1))


@cache
def _dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """torch's name of numpy's dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


@cache
def _can_pin(kind: str) -> bool:
    """Whether memory can be pinned for this kind of device: not on every system."""
    try:
        torch.empty(1, pin_memory=True)
    except RuntimeError:
        return False
    return True
