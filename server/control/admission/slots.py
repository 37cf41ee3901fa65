"""The engine's slots, and who gets the next one.

A sequence holds a slot while the engine has it, or several if its steps cost more. A request has a
*slice* of its sequences in the engine at a time, so that a small request is served between the
sequences of a large one. The next slot goes to the lowest priority, then to the key that holds the
fewest slots, then to the request that holds the fewest, then to the one that came first. Requests
in the background, the lines of batches, come behind all others. They leave some rows free, so that
another request starts at once, and are counted apart: not in the queue, nor as their key's.

While several keys share the engine, a key leaves as many of its rows free as it holds slots, up to
a reserve. So the keys that hold most never have all rows, and the first sequence of another key
starts and runs at once.

The queue is the requests of which no sequence has started. While a drain closes it, no request
starts; one that has started continues.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from server.control.admission.key_queues import KeyQueue, QueueShares
from server.control.admission.queue_rate import QueueRate
from server.control.admission.request_cost import RequestCost


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """What the engine has at a time.

    Attributes:
        total: slots of all requests.
        rows: those of them that the engine runs in one step; what has another slot waits in it.
        reserved: the most rows that a key leaves free for others.
        background: the most rows that requests in the background leave others.
        of_request: slots of one request.
        request_prompt_tokens: prompt tokens of one request that the engine has yet to read; a
            longer prompt is read alone.
    """

    total: int
    rows: int
    reserved: int
    of_request: int
    request_prompt_tokens: int
    background: int = 1


_Part = tuple[str | None, bool]


def _part(cost: RequestCost) -> _Part:
    """Whose slots a request's are: its key's, or its key's in the background."""
    return cost.key, cost.is_background


class Ticket:
    """One request among those that need slots, from its arrival to its end. See `Slots.ticket`.

    Attributes:
        slots: of each of its sequences.
        slots_held: by its sequences in the engine.
        number: grows with each arrival.
        task: answers the request; `None` once it has ended.
        waiter: done when the sequence that waits has started; `None` if none waits.
    """

    def __init__(self, slots: "Slots", cost: RequestCost, number: int) -> None:
        self.cost = cost
        self.number = number
        self.task = asyncio.current_task()
        limits = slots.limits
        rows = limits.background if cost.is_background else limits.total
        self.slots = min(cost.slots, limits.of_request, rows)
        self.slots_held = 0
        self.waiter: asyncio.Future[None] | None = None
        self._pool = slots
        self._started = 0
        # Index of a sequence -> the cost of its prompt, which the engine has not read yet.
        self._unread: dict[int, int] = {}
        self._unread_cost = 0

    @property
    def is_queued(self) -> bool:
        """Whether none of its sequences has started."""
        return not self._started

    @property
    def fits_slice(self) -> bool:
        """Whether its slice has room for its next sequence; an empty slice always has."""
        if not self.slots_held:
            return True
        limits = self._pool.limits
        cost = self._unread_cost + self.cost.prompt_costs[self._started]
        return self.slots_held + self.slots <= limits.of_request and (
            not self._unread_cost or cost <= limits.request_prompt_tokens
        )

    def start_now(self) -> bool:
        """Starts the next sequence unless it must wait. Returns whether it has started."""
        return self._pool.start_now(self)

    def start(self) -> Coroutine[Any, Any, None]:
        """Waits for the turn of the next sequence, and starts it. It waits from this call on."""
        return self._wait(None if self._pool.start_now(self) else self._pool.wait(self))

    async def _wait(self, waiter: "asyncio.Future[None] | None") -> None:
        if waiter is None:
            return
        try:
            await waiter
        finally:
            self._pool.stop_waiting(self)

    def start_next(self) -> None:
        """Counts the next sequence as started; for `Slots`."""
        cost = self.cost.prompt_costs[self._started]
        self._unread[self._started] = cost
        self._unread_cost += cost
        self._started += 1
        self.slots_held += self.slots

    def undo_start(self) -> None:
        """Undoes the start of its only sequence: the request is as if it had just arrived."""
        self._started = 0
        self._free_all()

    def prompt_read(self, index: int) -> None:
        """The engine has read the prompt of sequence `index`."""
        self._unread_cost -= self._unread.pop(index, 0)
        self._pool.dispatch()

    def ended(self, index: int) -> None:
        """The engine no longer has sequence `index`, which had started."""
        self._unread_cost -= self._unread.pop(index, 0)
        self._free(self.slots)

    def leave(self) -> None:
        """The request has ended: it waits no more and holds nothing. Safe to call twice."""
        self._pool.stop_waiting(self)
        self._free_all()
        self.task = None  # its frames refer to the ticket

    def _free_all(self) -> None:
        self._unread.clear()
        self._unread_cost = 0
        self._free(self.slots_held)

    def _free(self, slots: int) -> None:
        self.slots_held -= slots
        self._pool.free(self.cost, slots)


class Slots:
    """Hands slots out. Lives on the event loop; nothing here blocks.

    Args:
        clock: seconds that never go back.
        is_shared: whether several API keys may send requests now.

    Attributes:
        total: all slots.
        num_queued: the requests that wait for their first sequence.
        queue: these by key, and those that `Admission` counts as queued.
        queue_rate: how fast the queue empties.
        is_open: requests may start.
    """

    def __init__(
        self,
        limits: SlotLimits,
        clock: Callable[[], float] = time.monotonic,
        is_shared: Callable[[], bool] = lambda: False,
    ) -> None:
        self.limits = limits
        self._is_shared = is_shared
        self.total = self._free = limits.total
        self.num_queued = 0
        self.queue: QueueShares[Ticket] = QueueShares()
        self.queue_rate = QueueRate(clock)
        self.is_open = True
        # (Name of the key, whether its requests are in the background) -> its queue.
        self._keys: defaultdict[_Part, KeyQueue[Ticket]] = defaultdict(KeyQueue)
        self._arrivals = 0
        self._waiting = self._waiting_before_background = 0
        # A request waits for more slots than it may have now. So that others do not overtake it for
        # ever, keys that hold so many slots or more start nothing.
        self._waits_from = math.inf

    @property
    def in_use(self) -> int:
        """The slots that requests hold."""
        return self.total - self._free

    def may_start(self, key: str | None) -> bool:
        """Whether a request of an API key that needs one slot would start now."""
        slots_held = self._keys[key, False].slots_held
        return self.is_open and slots_held < self._waits_from and self.room(key) > 0

    def room(self, key: str | None) -> int:
        """The most slots that the next sequence of an API key may have now."""
        slots_held, limits = self._keys[key, False].slots_held, self.limits
        if not slots_held or not limits.reserved or not self._is_shared():
            return self._free
        return limits.rows - self.in_use - min(slots_held, limits.reserved)

    def _room_for(self, cost: RequestCost) -> int:
        """The most slots that the next sequence of a request may have now."""
        if not cost.is_background:
            return self.room(cost.key)
        return self.limits.background - self.in_use

    def ticket(self, cost: RequestCost) -> Ticket:
        """A ticket for a request that has arrived; `Ticket.leave` ends it."""
        self._arrivals += 1
        return Ticket(self, cost, self._arrivals)

    def close(self) -> None:
        """Lets no request start from now on."""
        self.is_open = False
        self.dispatch()

    def open(self) -> None:
        """Lets requests start again, in order. Does nothing if they may."""
        self.is_open = True
        self.dispatch()

    def start_now(self, ticket: Ticket) -> bool:
        """See `Ticket.start_now`."""
        cost = ticket.cost
        if self._keys[_part(cost)].slots_held >= self._waits_from:
            return False
        if cost.is_background and self._waiting_before_background:
            return False
        if ticket.slots > self._room_for(cost):
            return False
        if not ticket.fits_slice:
            return False
        if ticket.is_queued and not self.is_open:
            return False
        self._take(ticket)
        return True

    def wait(self, ticket: Ticket) -> "asyncio.Future[None]":
        """Makes a ticket wait. The result is done when its next sequence has started."""
        waiter = ticket.waiter = asyncio.get_running_loop().create_future()
        self._keys[_part(ticket.cost)].add(ticket)
        self._count(ticket, 1)
        self.dispatch()
        return waiter

    def stop_waiting(self, ticket: Ticket) -> None:
        """Takes a ticket out if it still waits."""
        if ticket.waiter is not None:
            self._end_wait(ticket).cancel()
            self.dispatch()

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Takes tickets out of the queue, of which none has started."""
        for ticket in tickets:
            if ticket.waiter is not None:
                self._end_wait(ticket).cancel()
            self.queue.discard(ticket)
        self.dispatch()

    def free(self, cost: RequestCost, slots: int) -> None:
        """Takes slots of a request back."""
        self._keys[_part(cost)].slots_held -= slots
        self._free += slots
        self.dispatch()

    def dispatch(self) -> None:
        """Hands out the free slots."""
        self._waits_from = math.inf
        while self._waiting and (ticket := self._next()) is not None:
            was_queued, waiter = ticket.is_queued, self._end_wait(ticket)
            if waiter.cancelled():  # its request ends in this pass of the event loop
                continue
            if was_queued and not ticket.cost.is_background:
                self.queue_rate.count()
            self._take(ticket)
            waiter.set_result(None)

    def _next(self) -> Ticket | None:
        candidates = [
            (
                *(ticket.cost.is_background, ticket.cost.priority),
                *(key.slots_held, ticket.slots_held, ticket.number, ticket),
            )
            for key in self._keys.values()
            if (ticket := key.next(with_queue=self.is_open)) is not None
        ]
        self._waits_from = math.inf
        others_wait = False
        for is_background, _, slots_held, _, _, ticket in sorted(candidates):
            if is_background and others_wait:
                return None
            if slots_held >= self._waits_from:
                continue
            if ticket.slots <= self._room_for(ticket.cost):
                return ticket
            if is_background:
                return None
            others_wait = True
            self._waits_from = slots_held if ticket.slots <= self._free else 0
        return None

    def _take(self, ticket: Ticket) -> None:
        ticket.start_next()
        self._keys[_part(ticket.cost)].slots_held += ticket.slots
        self._free -= ticket.slots

    def _end_wait(self, ticket: Ticket) -> "asyncio.Future[None]":
        assert ticket.waiter is not None
        waiter, ticket.waiter = ticket.waiter, None
        self._keys[_part(ticket.cost)].remove(ticket)
        self._count(ticket, -1)
        return waiter

    def _count(self, ticket: Ticket, sign: int) -> None:
        self._waiting += sign
        if ticket.cost.is_background:
            return
        self._waiting_before_background += sign
        if ticket.is_queued:
            self.num_queued += sign
            self.queue_rate.watch(has_queue=self.num_queued > 0)
            change = self.queue.add if sign > 0 else self.queue.discard
            change(ticket)
