"""Arrays reach the device in their own shapes and dtypes, after one copy that does not wait."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine_adapter.proposers import staging
from engine_adapter.proposers.staging import fill, to_device
from tests.engine_adapter.vllm_engine.support.pretend_device import (
    BLOCKING_UPLOAD,
    DOWNLOAD,
    GPU,
    SIZE,
    UPLOAD,
    VALUE,
    Log,
    pretend_device,
)

ARRAYS: list[npt.NDArray[Any]] = [
    np.arange(6, dtype=np.int64).reshape(2, 3),
    np.arange(5, dtype=np.int32)[::2],
    np.array([True, False, True]),
    np.empty((0, 3), np.int64),
    np.array([0.5, 2.0], np.float32),
]


def test_on_the_cpu_the_tensors_are_the_arrays() -> None:
    for array, tensor in zip(ARRAYS, to_device(torch.device("cpu"), *ARRAYS), strict=True):
        assert np.array_equal(tensor.numpy(), array)
        assert not array.size or np.shares_memory(tensor.numpy(), array)


def test_on_a_device_they_travel_in_one_copy_from_pinned_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    with pretend_device(monkeypatch) as device:
        with device.noting(log):
            tensors = to_device(GPU, *ARRAYS)
        for array, tensor in zip(ARRAYS, tensors, strict=True):
            assert tensor.device == GPU
            there = tensor.cpu().numpy()
            assert there.dtype == array.dtype
            assert np.array_equal(there, array)
    assert log.counts == {UPLOAD: 1}


@pytest.mark.parametrize(
    ("dtype", "shape", "parts"),
    [
        (torch.float32, (2, 4), 2),
        (torch.bfloat16, (2, 5), 3),  # the last part has fewer elements
        (torch.bfloat16, (1, 3), 1),
    ],
)
def test_a_large_tensor_travels_in_pinned_parts_of_the_devices_dtype(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, shape: tuple[int, int], parts: int
) -> None:
    monkeypatch.setattr(staging, "_can_pin", lambda kind: True)
    # vLLM on a CPU replaces the method, in the whole process.
    pin = torch.ops.aten._pin_memory.default
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pin(tensor))
    monkeypatch.setattr(staging, "_PART", 4)
    given = torch.arange(shape[0] * shape[1], dtype=torch.float32).view(shape[::-1]).T / 3
    log = Log()
    with pretend_device(monkeypatch) as device:
        there = torch.full(shape, -1.0, dtype=dtype, device=GPU)
        with device.noting(log):
            fill(there, given)
        assert torch.equal(there.cpu(), given.to(dtype))
    assert log.counts == {UPLOAD: parts}


def test_a_large_tensor_is_copied_at_once_where_nothing_can_be_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "_can_pin", lambda kind: False)
    monkeypatch.setattr(staging, "_PART", 4)
    given = torch.arange(9.0)
    log = Log()
    with pretend_device(monkeypatch) as device:
        there = torch.zeros(9, dtype=torch.bfloat16, device=GPU)
        with device.noting(log):
            fill(there, given)
        assert torch.equal(there.cpu(), given.to(torch.bfloat16))
    assert log.counts == {BLOCKING_UPLOAD: 1}


def test_the_pretend_device_notes_what_waits_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    with pretend_device(monkeypatch) as device:
        ours, mask = torch.tensor([3, 0, 5]).to(GPU), torch.tensor([True, False, True]).to(GPU)
        with device.noting(log):
            doubled = (ours * 2 + torch.arange(3, device=GPU)).clamp_(max=9)
            picked = doubled[torch.tensor([1, 2]).to(GPU)]
            picked[:1] = 7
            doubled.masked_fill_(mask, 0)
        assert log.counts == {BLOCKING_UPLOAD: 1}
        assert (picked.tolist(), doubled.tolist()) == ([7, 9], [0, 1, 0])
        for kind, waiting in (
            (VALUE, lambda: int(ours.sum())),
            (VALUE, lambda: bool(mask.any())),
            (SIZE, lambda: ours.nonzero()),
            (SIZE, lambda: ours[mask]),
            (SIZE, lambda: ours.repeat_interleave(ours)),
            (DOWNLOAD, lambda: ours.cpu()),
            (DOWNLOAD, lambda: ours.tolist()),
            (BLOCKING_UPLOAD, lambda: torch.tensor([1], device=GPU)),
            (BLOCKING_UPLOAD, lambda: ours[torch.tensor([1])]),
            (BLOCKING_UPLOAD, lambda: ours.copy_(torch.tensor([1, 2, 3]), non_blocking=True)),
        ):
            one = Log()
            with device.noting(one):
                waiting()
            assert one.counts == {kind: 1}, one.table()
        with pytest.raises(TypeError, match="no numpy array"):
            ours.numpy()
        with pytest.raises(RuntimeError, match="tensors of both devices"):
            ours + torch.tensor([1, 2, 3])
