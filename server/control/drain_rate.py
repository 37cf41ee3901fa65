"""How fast a queue empties, measured."""

from collections import deque
from collections.abc import Callable

_MAX_SEEN = 64
"""Departures that the measure remembers."""


class DrainRate:
    """The rate at which requests leave the queue because their turn has come.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # The time of the beginning, then of each departure; only the last ones are kept.
        self._times: deque[float] = deque(maxlen=_MAX_SEEN + 1)

    def begin(self) -> None:
        """The queue was empty until now: the time before tells nothing."""
        self._times.clear()
        self._times.append(self._clock())

    def count(self) -> None:
        """A request's turn has come."""
        self._times.append(self._clock())

    def seconds_for(self, requests: int) -> float | None:
        """The time in which so many requests leave; `None` before the first one has left.

        The time since the last departure counts too, so that a queue that stands still shows.
        """
        departures = len(self._times) - 1
        if departures < 1:
            return None
        return requests * (self._clock() - self._times[0]) / departures
