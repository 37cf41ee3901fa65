"""A device that takes stated times, without a GPU: work on it is a time on a clock.

vLLM's runner on a CPU computes at once, and its events do nothing. Here each pass of a model makes
the device busy for a while longer, an event is the moment at which the work before it is done, and
to wait for one sleeps until then. So a step takes what it would on a device of that speed: Python
runs beside it, but where it waits. The computations of a small model count as Python's.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine_adapter.proposers.staging import HostCopy


@dataclass
class DeviceClock:
    """When the device has done what it was given.

    Attributes:
        is_on: whether passes take time.
        free_s: when it has done all, as of `time.perf_counter`.
    """

    is_on: bool = False
    free_s: float = 0.0

    def timed(self, call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """The pass of a model, which takes so long on the device from its first kernel on."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self.is_on:
                self.free_s = max(time.perf_counter(), self.free_s) + seconds
            return call(*args, **kwargs)

        return run

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Gives this process events of the clock, and copies to the CPU that have one."""

        def event(*_: Any, **__: Any) -> _Event:
            return _Event(self)

        for module in (torch, torch.cuda):
            monkeypatch.setattr(module, "Event", event)
        started = HostCopy.__init__

        def begin(copy: Any, *tensors: torch.Tensor) -> None:
            started(copy, *tensors)
            copy._ready = event()
            copy._ready.record()

        monkeypatch.setattr(HostCopy, "__init__", begin)


class _Event:
    """In the place of torch's."""

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._at_s = 0.0

    def record(self, *_: Any) -> None:
        self._at_s = self._clock.free_s

    def wait(self, *_: Any) -> None:
        """The device waits, and not the CPU."""

    def elapsed_time(self, end: "_Event") -> float:
        """Milliseconds between two events."""
        return 1e3 * (end._at_s - self._at_s)

    def synchronize(self) -> None:
        time.sleep(max(self._at_s - time.perf_counter(), 0.0))
