"""Copies arrays from the CPU to the device without waiting for it.

A copy from ordinary memory waits until the device has done all the work that it was given before. A
copy from pinned memory takes its place in that work, and the CPU continues. Each copy has a cost of
its own, so arrays that are needed together travel together.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16
"""Bytes; a multiple of the size of every element."""


def to_device(device: torch.device, *arrays: npt.NDArray[Any]) -> list[torch.Tensor]:
    """The arrays as tensors on the device, in their own shapes and dtypes, after one copy.

    On the CPU nothing is copied: the tensors are the arrays' own memory, as of `torch.from_numpy`.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    starts = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)])
    # torch does not reuse pinned memory before the copies from it are done.
    buffer = torch.empty(int(starts[-1]), dtype=torch.uint8, pin_memory=True)
    raw = buffer.numpy()
    for array, start in zip(arrays, starts.tolist(), strict=False):
        raw[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    copied = buffer.to(device, non_blocking=True)
    return [
        copied[start : start + array.nbytes]
        .view(torch.from_numpy(array[:0]).dtype)
        .view(array.shape)
        for array, start in zip(arrays, starts.tolist(), strict=False)
    ]
