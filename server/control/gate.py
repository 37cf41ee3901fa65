"""The gate that holds new requests during a drain, and the requests in flight that it waits for.

While a drain closes the gate, new requests wait in order of arrival; the drain itself waits until
no request is in flight. A request that finds the gate open and no one waiting pays only for
reading `Gate.must_wait`.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


class Ticket:
    """The position of one waiting request in the queue."""

    def __init__(self, gate: "Gate") -> None:
        self._gate = gate
        self._woken = asyncio.Event()

    @property
    def is_next(self) -> bool:
        """Whether the gate is open and this ticket is the first in the queue."""
        return self._gate.would_pass(self)

    def wake(self) -> None:
        """Wakes the request, which then checks `is_next`."""
        self._woken.set()

    async def wait(self) -> None:
        """Sleeps until `wake`. The gate may have closed again since: check `is_next`."""
        self._woken.clear()
        if not self.is_next:
            await self._woken.wait()


class Gate:
    """Makes requests wait while it is closed, then lets them pass one after the other."""

    def __init__(self) -> None:
        self._open = True
        self._queue: deque[Ticket] = deque()

    @property
    def must_wait(self) -> bool:
        """Whether a new request must wait: the gate is closed, or other requests wait."""
        return not self._open or bool(self._queue)

    @property
    def num_waiting(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    def close(self) -> None:
        """Makes requests wait from now on, including woken requests that have not passed yet."""
        self._open = False

    def open(self) -> None:
        """Lets the waiting requests pass in order. Does nothing to an open gate."""
        self._open = True
        self._wake_next()

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """A ticket at the end of the queue, until the block ends.

        The block must include the admission, with no `await` between `Ticket.is_next` and the
        admission, so that neither a new request nor a new drain comes in between.
        """
        ticket = Ticket(self)
        self._queue.append(ticket)
        try:
            yield ticket
        finally:
            self._queue.remove(ticket)
            # One iteration later: a request with several choices starts them in the next
            # iteration, and they must reach the engine before the next request.
            asyncio.get_running_loop().call_soon(self._wake_next)

    def would_pass(self, ticket: Ticket) -> bool:
        """Whether the gate is open and `ticket` is the first in the queue."""
        return self._open and self._queue[0] is ticket

    def _wake_next(self) -> None:
        if self._open and self._queue:
            self._queue[0].wake()


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
