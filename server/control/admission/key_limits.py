"""How many requests an API key may send, and may have unfinished."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.control.admission.limit_errors import ConcurrencyLimit, RateLimit
from server.telemetry.admission_metrics import AdmissionMetrics


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


class _KeyCounts:
    """One API key: its unfinished requests, and the rate of new ones."""

    def __init__(self, rate: RequestRate | None) -> None:
        self.requests = 0
        self.rate = rate


class KeyLimits:
    """The limits of each API key. Lives on the event loop; nothing here blocks.

    Args:
        unfinished: most unfinished requests of a key, those in the queue included; `None` sets no
            limit.
        per_minute: most new requests of a key in a minute; `None` sets no limit.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        unfinished: int | None,
        per_minute: int | None,
        metrics: AdmissionMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unfinished = unfinished
        self._per_minute = per_minute
        self._metrics = metrics
        self._clock = clock
        self._keys: dict[str | None, _KeyCounts] = {}

    @contextmanager
    def request(self, name: str | None) -> Iterator[None]:
        """Counts a request of a key until the block ends.

        Args:
            name: the key's; all requests without a named key share `None`.

        Raises:
            ConcurrencyLimit, RateLimit: the key has too many requests.
        """
        key = self._key(name)
        if self._unfinished is not None and key.requests >= self._unfinished:
            error = ConcurrencyLimit(self._unfinished)
            self._metrics.count_limited(str(error.code))
            raise error
        if key.rate is not None and (wait_s := key.rate.take()):
            limited = RateLimit(self._per_minute or 0, wait_s)
            self._metrics.count_limited(str(limited.code))
            raise limited
        key.requests += 1
        try:
            yield
        finally:
            key.requests -= 1

    def _key(self, name: str | None) -> _KeyCounts:
        key = self._keys.get(name)
        if key is None:
            per_minute = self._per_minute
            rate = None if per_minute is None else RequestRate(per_minute, self._clock)
            key = self._keys[name] = _KeyCounts(rate)
        return key
