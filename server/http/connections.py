"""All connections: how many may be open, and a look at each of them once a second.

Deadlines are checked here instead of with a timer for each connection: what a connection does
between two looks costs nothing but a note of the time.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import structlog

from server.http import descriptors
from server.settings.http_settings import HttpSettings
from server.telemetry.connection_metrics import CloseReason, ConnectionMetrics

CHECK_EVERY_S = 1.0
"""Seconds between two looks at all connections."""

LOG_EVERY_S = 10.0
"""Seconds between two log lines about the same thing; those between are counted in the next."""

log = structlog.get_logger(__name__)


class Watched(Protocol):
    """A connection, as `Connections` sees it."""

    def check(self, now: float) -> None:
        """Closes the connection if one of its deadlines has passed; `now` is the loop's time."""
        ...


class Entry(Enum):
    """What a new connection gets.

    Attributes:
        OPEN: it may send requests.
        SPARE: the most connections are open: it gets an answer to a probe, or a refusal.
        NONE: it is closed at once.
    """

    OPEN = "open"
    SPARE = "spare"
    NONE = "none"


class RepeatedWarning:
    """Warnings that can come thousands of times a second: few lines, which have the number."""

    def __init__(self, event: str, every_s: float = LOG_EVERY_S) -> None:
        self._event = event
        self._every_s = every_s
        self._next_at = float("-inf")
        self._count = 0
        self._last: dict[str, object] = {}

    def add(self, now: float, **fields: object) -> None:
        """Counts a warning, and writes a line if the last one is long enough ago."""
        self._count += 1
        self._last = fields
        self.flush(now)

    def flush(self, now: float) -> None:
        """Writes a line for what has been counted since the last one, if that is long ago."""
        if self._count and now >= self._next_at:
            log.warning(self._event, **self._last, count=self._count)
            self._next_at, self._count = now + self._every_s, 0


class Connections:
    """The open connections of a server.

    Args:
        limit: the most of them.
        exhausted: whether no descriptor is free.
    """

    def __init__(
        self,
        settings: HttpSettings,
        limit: int,
        metrics: ConnectionMetrics,
        exhausted: Callable[[], bool] = descriptors.exhausted,
    ) -> None:
        self.settings = settings
        self.limit = limit
        self._metrics = metrics
        self._exhausted = exhausted
        self._open: set[Watched] = set()
        # Those of them that may send requests: never more than the limit.
        self._placed: set[Watched] = set()
        self._watching = False
        self._warnings = {reason: RepeatedWarning("connection_closed") for reason in CloseReason}
        self._no_descriptors = RepeatedWarning("descriptors_exhausted")
        metrics.limit.set(limit)

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: Watched, loop: asyncio.AbstractEventLoop) -> Entry:
        """Notes a new connection, and says what it gets."""
        if not self._watching:
            self._watching = True
            loop.call_later(CHECK_EVERY_S, self._watch, loop)
        self._open.add(connection)
        self._metrics.open.set(len(self._open))
        if self.give_place(connection):
            return Entry.OPEN
        num_spare = len(self._open) - len(self._placed)
        return Entry.SPARE if num_spare <= descriptors.SPARE else Entry.NONE

    def give_place(self, connection: Watched) -> bool:
        """Gives an open connection one of the places, for good. Returns whether there was one."""
        if len(self._placed) < self.limit:
            self._placed.add(connection)
        return connection in self._placed

    def lost(self, connection: Watched) -> None:
        """Forgets a connection that has ended."""
        self._open.discard(connection)
        self._placed.discard(connection)
        self._metrics.open.set(len(self._open))

    def closing(self, reason: CloseReason, peer: str, now: float, **fields: object) -> None:
        """Counts and logs that the server closes a connection."""
        self._metrics.count(reason)
        if reason is not CloseReason.IDLE:
            self._warnings[reason].add(now, reason=reason.value, peer=peer, **fields)

    def check(self, now: float) -> None:
        """Looks at all connections and at the descriptors; `now` is the loop's time."""
        for connection in tuple(self._open):
            connection.check(now)
        if self._exhausted():
            self._metrics.exhausted.inc()
            self._no_descriptors.add(now, connections=len(self._open))
        for warning in (*self._warnings.values(), self._no_descriptors):
            warning.flush(now)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(CHECK_EVERY_S, self._watch, loop)
        self.check(loop.time())
