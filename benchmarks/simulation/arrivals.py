"""When the requests of a workload begin."""

from collections import deque
from dataclasses import dataclass

from benchmarks.simulation.trace import TracedRequest
from benchmarks.simulation.workloads import Workload


@dataclass(frozen=True, slots=True)
class Started:
    """A request that begins.

    Attributes:
        at_s: the time from which its latency counts.
    """

    request_id: str
    request: TracedRequest
    at_s: float


class Arrivals:
    """Hands out the requests of a workload.

    Attributes:
        phase: the index of the current phase.
    """

    def __init__(self, workload: Workload) -> None:
        self.phase = 0
        self._phases = list(workload)
        self._queue = deque(self._phases[0].requests) if self._phases else deque()
        self._began_s = 0.0
        self._number = 0

    def next(self, running: int, now_s: float) -> Started | None:
        """The next request if it may begin now; without running requests it never waits."""
        while not self._queue:
            if self.phase + 1 >= len(self._phases):
                return None
            self.phase += 1
            self._queue.extend(self._phases[self.phase].requests)
            self._began_s = now_s
        request = self._queue[0]
        arrival_s = self._began_s + request.arrival_s if request.arrival_s else now_s
        if running and (arrival_s > now_s or running >= self._phases[self.phase].streams):
            return None
        self._queue.popleft()
        self._number += 1
        return Started(f"request-{self._number}", request, arrival_s)

    def waiting(self, now_s: float) -> int:
        """Requests of an open loop that have arrived and not begun."""
        return sum(
            request.arrival_s > 0 and self._began_s + request.arrival_s <= now_s
            for request in self._queue
        )
