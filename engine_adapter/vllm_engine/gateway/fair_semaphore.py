"""A semaphore that is fair to those who own the work."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Waiter:
    """Work that waits for a slot; `grant` gets the owner to whom the slot is granted."""

    owners: Collection[str | None]
    grant: "asyncio.Future[str | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class FairSemaphore:
    """Grants slots: the next one to the owner whose last grant is longest ago.

    An owner who has a lot of work, or work that takes long, leaves slots to the others. Lives on
    the event loop.

    Args:
        slots: how much work is done at a time.
        slots_per_owner: how much of it is one owner's.
    """

    def __init__(self, slots: int, slots_per_owner: int) -> None:
        self._free = slots
        self._slots_per_owner = slots_per_owner
        self._waiters: list[_Waiter] = []
        self._running: Counter[str | None] = Counter()
        # Owner -> the number of its last grant; of those that wait or run, and of some others.
        self._last_grant: dict[str | None, int] = {}
        self._num_grants = 0

    @asynccontextmanager
    async def acquire(self, owners: Collection[str | None]) -> AsyncIterator[None]:
        """Waits for a slot, and has it until the block ends.

        Args:
            owners: whose work it is; a slot for any of them will do. It may change while the
                work waits: call `grant_free` then.
        """
        waiter = _Waiter(owners)
        self._waiters.append(waiter)
        self.grant_free()
        try:
            owner = await waiter.grant
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            else:
                self._release(waiter.grant.result())
            raise
        try:
            yield
        finally:
            self._release(owner)

    def grant_free(self) -> None:
        """Grants the free slots."""
        while self._free and (candidate := self._next()) is not None:
            waiter, owner = candidate
            self._waiters.remove(waiter)
            self._free -= 1
            self._running[owner] += 1
            self._num_grants += 1
            self._last_grant[owner] = self._num_grants
            waiter.grant.set_result(owner)

    def _next(self) -> tuple[_Waiter, str | None] | None:
        """The work that gets the next slot, and its owner for whom it is; equals in their order."""
        candidates = [
            (waiter, owner)
            for waiter in self._waiters
            for owner in waiter.owners
            if self._running[owner] < self._slots_per_owner and not waiter.grant.done()
        ]
        return min(
            candidates, key=lambda candidate: self._last_grant.get(candidate[1], 0), default=None
        )

    def _release(self, owner: str | None) -> None:
        self._free += 1
        self._running[owner] -= 1
        self.grant_free()
