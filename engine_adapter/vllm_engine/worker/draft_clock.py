"""How long the call of a proposer takes: on a device until its drafts are made, without a wait."""

import time

import torch


class DraftClock:
    """Begins with the call.

    Args:
        device: on which the proposer's model runs; on the CPU the time of the call is all.

    Attributes:
        host_s: seconds of the call itself, once it has ended.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events = None if device.type == "cpu" else (self._mark(), self._mark())
        self._began_s = time.perf_counter()
        self.host_s = 0.0

    def stop(self) -> None:
        """The call has ended. Its work on the device may be still to do."""
        self.host_s = time.perf_counter() - self._began_s
        if self._events is not None:
            self._events[1].record()

    def read_s(self) -> float:
        """Seconds until the drafts were made; waits for them."""
        if self._events is None:
            return self.host_s
        begin, end = self._events
        end.synchronize()
        return max(self.host_s, 1e-3 * begin.elapsed_time(end))

    def _mark(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event
