"""The gate before admission: closed by a drain, it holds requests in order of arrival.

Open, it costs a request one look at `Gate.holds`.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Place:
    """One held request's place in the queue."""

    def __init__(self, gate: "Gate") -> None:
        self._gate = gate
        self._turn = asyncio.Event()

    @property
    def reached(self) -> bool:
        """Whether it is this request's turn: the gate is open and nobody is ahead."""
        return self._gate.is_turn_of(self)

    def call(self) -> None:
        """Wakes the request, which then sees whether it is its turn."""
        self._turn.set()

    async def wait(self) -> None:
        """Sleeps until called. Being called is no promise: look at `reached` again."""
        self._turn.clear()
        if not self.reached:
            await self._turn.wait()


class Gate:
    """Holds requests while it is closed, and lets them go on one after the other."""

    def __init__(self) -> None:
        self._open = True
        self._held: deque[Place] = deque()

    @property
    def holds(self) -> bool:
        """Whether a request that comes now must wait: for the gate, or for those before it."""
        return not self._open or bool(self._held)

    @property
    def held(self) -> int:
        """How many requests wait."""
        return len(self._held)

    def close(self) -> None:
        """Holds every request from now on, those included that were called and did not go."""
        self._open = False

    def open(self) -> None:
        """Lets the held requests go on in order. Safe to call when it is open."""
        self._open = True
        self._call_next()

    @contextmanager
    def place(self) -> Iterator[Place]:
        """A place at the queue's end, until the block ends.

        The block must hold the admission too, without an `await` after `Place.reached`, so
        that neither a newcomer nor a new drain can come between.
        """
        place = Place(self)
        self._held.append(place)
        try:
            yield place
        finally:
            self._held.remove(place)
            # Not at once: a request of several choices starts them an iteration later, and the
            # next request is not to reach the engine before them.
            asyncio.get_running_loop().call_soon(self._call_next)

    def is_turn_of(self, place: Place) -> bool:
        """Whether the gate is open and `place` is the first."""
        return self._open and self._held[0] is place

    def _call_next(self) -> None:
        if self._open and self._held:
            self._held[0].call()
