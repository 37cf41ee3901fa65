"""Requests a minute of one API key."""

from collections.abc import Callable


class RequestRate:
    """A token bucket: as many requests a minute, evenly; after a pause as many at once.

    Args:
        per_minute: requests a minute.
        clock: seconds that never go back.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._left = float(per_minute)
        self._at_s = clock()

    def take(self) -> float:
        """Counts a request. Returns 0, or the seconds until the next one may come."""
        now_s = self._clock()
        per_second = self._per_minute / 60
        self._left = min(self._per_minute, self._left + (now_s - self._at_s) * per_second)
        self._at_s = now_s
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / per_second
