"""All connections: how many may be open, and a look at each of them once a second.

Deadlines are checked here instead of with a timer for each connection: what a connection does
between two looks costs nothing but a note of the time.
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol, cast

from server.http import descriptors
from server.settings.http_settings import HttpSettings
from server.telemetry.connection_metrics import CloseReason, ConnectionMetrics
from server.telemetry.repeated_warning import RepeatedWarning

CHECK_EVERY_S = 1.0
"""Seconds between two looks at all connections."""


class Pending(Protocol):
    """A connection that waits for its client, as `Connections` sees it."""

    def give_way(self) -> bool:
        """Closes the connection for a new one, unless a request runs; returns whether it did."""
        ...


class Handshaking(Pending, Protocol):
    """A connection that is to speak TLS, as `Connection` sees it."""

    def acknowledged(self) -> int | None:
        """The bytes, encrypted, that the client's machine has; `None` if this one does not say."""
        ...


class Watched(Pending, Protocol):
    """A connection that can send requests, as `Connections` sees it."""

    def check(self, now_s: float) -> int:
        """Closes the connection if one of its deadlines has passed; `now_s` is the loop's time.

        Returns the bytes that its client leaves unread.
        """
        ...

    def end_unread(self) -> None:
        """Ends the connection because of what all clients leave unread."""
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


class Connections:
    """The connections of a server, from the time when they are accepted.

    When the most are open, a new one takes the place of the oldest TLS handshake. If there is none,
    it is a spare one; the oldest spare one that waits for its client makes room.

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
        # All of these in the order of their age.
        self._open_connections: dict[Watched, None] = {}
        self._handshakes: dict[Pending, None] = {}
        # Those of them that may send requests: never more than the limit.
        self._placed: dict[Pending, None] = {}
        self._spare: dict[Pending, None] = {}
        self._watching = False
        self._warnings = {reason: RepeatedWarning("connection_closed") for reason in CloseReason}
        self._no_descriptors = RepeatedWarning("descriptors_exhausted")
        metrics.limit.set(limit)
        metrics.num_open.set_function(self.__len__)
        metrics.handshakes.set_function(self._handshakes.__len__)

    def __len__(self) -> int:
        return len(self._placed) + len(self._spare)

    def accepted(self, handshake: Pending, loop: asyncio.AbstractEventLoop) -> Entry:
        """Notes a new connection that does not speak TLS yet, and says what it gets."""
        self._begin_watch(loop)
        entry = self._enter(handshake)
        if entry is not Entry.NONE:
            self._handshakes[handshake] = None
        return entry

    def opened(
        self,
        connection: Watched,
        loop: asyncio.AbstractEventLoop,
        handshake: Handshaking | None = None,
    ) -> Entry:
        """Notes a connection that can send requests, and says what it gets.

        Args:
            handshake: that of the connection, which has ended.
        """
        self._begin_watch(loop)
        if handshake is not None:
            self._forget(handshake)
        entry = self._enter(connection)
        if entry is not Entry.NONE:
            self._open_connections[connection] = None
        return entry

    def give_place(self, connection: Pending) -> bool:
        """Gives an open connection one of the places, for good. Returns whether there was one."""
        if connection not in self._placed and len(self._placed) < self.limit:
            self._spare.pop(connection, None)
            self._placed[connection] = None
        return connection in self._placed

    def lost(self, connection: Pending) -> None:
        """Forgets a connection that has ended."""
        self._forget(connection)

    def closing(self, reason: CloseReason, peer: str, now_s: float, **fields: object) -> None:
        """Counts and logs that the server closes a connection."""
        self._metrics.count(reason)
        if reason is not CloseReason.IDLE:
            self._warnings[reason].add(now_s, reason=reason.value, peer=peer, **fields)

    def check(self, now_s: float) -> None:
        """Looks at all connections and at the descriptors; `now_s` is the loop's time."""
        self._check_unsent(
            {connection: connection.check(now_s) for connection in tuple(self._open_connections)}
        )
        if self._exhausted():
            self._metrics.exhausted.inc()
            self._no_descriptors.add(now_s, connections=len(self))
        for warning in (*self._warnings.values(), self._no_descriptors):
            warning.flush(now_s)

    def _enter(self, connection: Pending) -> Entry:
        if self.give_place(connection) or (
            self._make_room(h for h in self._handshakes if h in self._placed)
            and self.give_place(connection)
        ):
            return Entry.OPEN
        if len(self._spare) < descriptors.SPARE or self._make_room(self._spare):
            self._spare[connection] = None
            return Entry.SPARE
        return Entry.NONE

    def _make_room(self, oldest_first: Iterable[Pending]) -> bool:
        """Closes the first of them that can be closed; returns whether there was one."""
        victim = next((pending for pending in oldest_first if pending.give_way()), None)
        if victim is not None:
            self._forget(victim)
        return victim is not None

    def _forget(self, connection: Pending) -> None:
        for connections in (self._handshakes, self._placed, self._spare):
            connections.pop(connection, None)
        self._open_connections.pop(cast(Watched, connection), None)

    def _check_unsent(self, unsent: dict[Watched, int]) -> None:
        """Ends those whose clients leave most unread until the others are below the limit."""
        excess = sum(unsent.values()) - self.settings.max_all_unsent_bytes
        if excess <= 0:
            return
        for connection in sorted(unsent, key=unsent.__getitem__, reverse=True):
            connection.end_unread()
            excess -= unsent[connection]
            if excess <= 0:
                return

    def _begin_watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._watching:
            self._watching = True
            loop.call_later(CHECK_EVERY_S, self._watch, loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(CHECK_EVERY_S, self._watch, loop)
        self.check(loop.time())
