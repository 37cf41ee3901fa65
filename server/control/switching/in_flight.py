"""The requests in flight: admitted and not ended. A drain waits until there is none."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Entry:
    """One request, with all its choices. `task` answers it."""

    proposer: str
    pinned: bool
    task: asyncio.Task[object] | None


class InFlight:
    """The admitted, unfinished requests. Lives on the event loop."""

    def __init__(self) -> None:
        self._entries: set[_Entry] = set()
        self._emptied: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def by_proposer(self) -> Mapping[str, int]:
        """The number of requests of each proposer; `none` is plain decoding."""
        return Counter(entry.proposer for entry in self._entries)

    @contextmanager
    def track(self, name: str, *, pinned: bool = False) -> Iterator[None]:
        """Counts a request under the proposer `name` while the block runs, in its own task."""
        entry = _Entry(name, pinned, asyncio.current_task())
        self._entries.add(entry)
        try:
            yield
        finally:
            self._entries.discard(entry)
            if self._emptied is not None and not self._entries and not self._emptied.done():
                self._emptied.set_result(None)

    def move_unpinned(self, name: str) -> None:
        """Counts every request that is not pinned under the proposer `name` from now on."""
        for entry in self._entries:
            if not entry.pinned:
                entry.proposer = name

    def abort(self, error: Exception) -> int:
        """Cancels every request's task with `error` as the reason. Returns how many."""
        for entry in self._entries:
            if entry.task is not None:
                entry.task.cancel(msg=error)
        return len(self._entries)

    async def emptied(self) -> None:
        """Returns when no request is left. Only one caller may wait at a time."""
        if not self._entries:
            return
        self._emptied = asyncio.get_running_loop().create_future()
        try:
            await self._emptied
        finally:
            self._emptied = None
