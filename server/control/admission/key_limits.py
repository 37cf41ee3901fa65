"""How many requests an API key may send, may have unfinished, and may begin at a time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.control.admission.limit_errors import ConcurrencyLimit, RateLimit
from server.telemetry.admission_metrics import AdmissionMetrics

TURNS_PER_PASS = 4
"""The requests of one key that begin in a pass of the event loop. Each takes about a millisecond
until it is refused or rendered, and the requests of all other keys wait for a pass to end.
"""


class RequestRate:
    """A token bucket: as many requests a minute, evenly; after a pause as many at once.

    Args:
        per_minute: requests a minute.
        clock: seconds that never go back.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._tokens = float(per_minute)
        self._at_s = clock()

    def take(self) -> float:
        """Counts a request. Returns 0, or the seconds until the next one may come."""
        now_s = self._clock()
        per_second = self._per_minute / 60
        self._tokens = min(self._per_minute, self._tokens + (now_s - self._at_s) * per_second)
        self._at_s = now_s
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / per_second


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
            rate_error = RateLimit(self._per_minute or 0, wait_s)
            self._metrics.count_limited(str(rate_error.code))
            raise rate_error
        key.requests += 1
        try:
            yield
        finally:
            key.requests -= 1

    @contextmanager
    def unfinished(self, name: str | None) -> Iterator[None]:
        """Counts work that a key's request has left behind as a request, until the block ends."""
        key = self._key(name)
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


class KeyTurns:
    """Lets the requests of each key begin in order, a few in a pass of the event loop.

    The loop runs all that is ready before it looks for what has arrived. So with turns, a key has a
    few pieces of work in each pass, however many requests it sends.
    """

    def __init__(self) -> None:
        self._keys: dict[str | None, _Turns] = {}

    async def turn(self, key: str | None) -> None:
        """Waits until those of the key that came before have begun."""
        if key not in self._keys:
            self._keys[key] = _Turns()
        await self._keys[key].next()


class _Turns:
    """The turns of one key."""

    def __init__(self) -> None:
        self._free_turns = TURNS_PER_PASS
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Waits for a turn."""
        loop = asyncio.get_running_loop()
        if self._free_turns == TURNS_PER_PASS:
            loop.call_soon(self._renew, loop)
        if self._free_turns:
            self._free_turns -= 1
            return
        waiter = loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives the turns of a pass, first to those that wait."""
        self._free_turns = TURNS_PER_PASS
        while self._waiters and self._free_turns:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._free_turns -= 1
        if self._free_turns < TURNS_PER_PASS:
            loop.call_soon(self._renew, loop)
