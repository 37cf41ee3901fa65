"""Turns at a few places, fair to those who own the work."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Waiting:
    """Work that waits; `turn` gets the owner for whom its turn has come."""

    owners: Collection[str | None]
    turn: "asyncio.Future[str | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class FairTurns:
    """Hands out places: the next one to the owner whose last turn began longest ago.

    An owner who has a lot of work, or work that takes long, leaves places to the others. Lives on
    the event loop.

    Args:
        places: how much work is done at a time.
        of_owner: how much of it is one owner's.
    """

    def __init__(self, places: int, of_owner: int) -> None:
        self._free = places
        self._of_owner = of_owner
        self._waiting: list[_Waiting] = []
        self._running: Counter[str | None] = Counter()
        # Owner -> the number of its last turn; of those that wait or run, and of some others.
        self._last: dict[str | None, int] = {}
        self._turns = 0

    @asynccontextmanager
    async def turn(self, owners: Collection[str | None]) -> AsyncIterator[None]:
        """Waits for a turn of work, and has the place until the block ends.

        Args:
            owners: whose work it is; the turn of any of them will do. It may change while the
                work waits: call `serve` then.
        """
        waiting = _Waiting(owners)
        self._waiting.append(waiting)
        self.serve()
        try:
            owner = await waiting.turn
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                self._end(waiting.turn.result())
            raise
        try:
            yield
        finally:
            self._end(owner)

    def serve(self) -> None:
        """Hands out the free places."""
        while self._free and (found := self._next()) is not None:
            waiting, owner = found
            self._waiting.remove(waiting)
            self._free -= 1
            self._running[owner] += 1
            self._turns += 1
            self._last[owner] = self._turns
            waiting.turn.set_result(owner)

    def _next(self) -> tuple[_Waiting, str | None] | None:
        """The work whose turn is next, and its owner for whom it is; equals in their order."""
        candidates = [
            (waiting, owner)
            for waiting in self._waiting
            for owner in waiting.owners
            if self._running[owner] < self._of_owner and not waiting.turn.done()
        ]
        return min(candidates, key=lambda found: self._last.get(found[1], 0), default=None)

    def _end(self, owner: str | None) -> None:
        self._free += 1
        self._running[owner] -= 1
        self.serve()
