"""Turns of the API keys on the event loop: many requests of one key do not hold up another's."""

import asyncio
from collections import deque

TURNS_PER_PASS = 4
"""The requests of one key that begin in a pass of the event loop. Each takes about a millisecond
until it is refused or rendered, and the requests of all other keys wait for a pass to end.
"""


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
        self._left = TURNS_PER_PASS
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Waits for a turn."""
        loop = asyncio.get_running_loop()
        if self._left == TURNS_PER_PASS:
            loop.call_soon(self._renew, loop)
        if self._left:
            self._left -= 1
            return
        waiter = loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives the turns of a pass, first to those that wait."""
        self._left = TURNS_PER_PASS
        while self._waiters and self._left:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        if self._left < TURNS_PER_PASS:
            loop.call_soon(self._renew, loop)
