"""The engine's slots, and who gets the next one.

A sequence holds a slot while the engine has it, or several if its steps cost more. A request has a
*slice* of its sequences in the engine at a time, so that a small request is served between the
sequences of a large one. The next slot goes to the lowest priority, then to the key that holds the
fewest slots, then to the request that holds the fewest, then to the one that came first.

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

from server.control.demand import Demand
from server.control.key_queue import KeyQueue
from server.control.queue_rate import QueueRate
from server.control.queue_shares import QueueShares


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """What the engine has at a time.

    Attributes:
        total: slots of all requests.
        rows: those of them that the engine runs in one step; what has another slot waits in it.
        reserved: the most rows that a key leaves free for others.
        of_request: slots of one request.
        request_prompt_tokens: prompt tokens of one request that the engine has yet to read; a
            longer prompt is read alone.
    """

    total: int
    rows: int
    reserved: int
    of_request: int
    request_prompt_tokens: int


class Place:
    """One request among those that need slots, from its arrival to its end. See `Slots.place`.

    Attributes:
        slots: of each of its sequences.
        held: slots that it holds.
        number: grows with each arrival.
        task: answers the request; `None` once it has ended.
        waiter: done when the sequence that waits has started; `None` if none waits.
    """

    def __init__(self, slots: "Slots", demand: Demand, number: int) -> None:
        self.demand = demand
        self.number = number
        self.task = asyncio.current_task()
        self.slots = min(demand.slots, slots.limits.of_request)
        self.held = 0
        self.waiter: asyncio.Future[None] | None = None
        self._all = slots
        self._started = 0
        # Index of a sequence -> the cost of its prompt, which the engine has not read yet.
        self._unread: dict[int, int] = {}
        self._unread_cost = 0

    @property
    def is_queued(self) -> bool:
        """Whether none of its sequences has started."""
        return not self._started

    @property
    def has_room(self) -> bool:
        """Whether its slice has room for its next sequence; an empty slice always has."""
        if not self.held:
            return True
        limits = self._all.limits
        cost = self._unread_cost + self.demand.prompt_costs[self._started]
        return self.held + self.slots <= limits.of_request and (
            not self._unread_cost or cost <= limits.request_prompt_tokens
        )

    def start_now(self) -> bool:
        """Starts the next sequence unless it must wait. Returns whether it has started."""
        return self._all.start_now(self)

    def start(self) -> Coroutine[Any, Any, None]:
        """Waits for the turn of the next sequence, and starts it. It waits from this call on."""
        return self._turn(None if self._all.start_now(self) else self._all.wait(self))

    async def _turn(self, waiter: "asyncio.Future[None] | None") -> None:
        if waiter is None:
            return
        try:
            await waiter
        finally:
            self._all.stop_waiting(self)

    def take(self) -> None:
        """Counts the next sequence as started; for `Slots`."""
        cost = self.demand.prompt_costs[self._started]
        self._unread[self._started] = cost
        self._unread_cost += cost
        self._started += 1
        self.held += self.slots

    def give_back(self) -> None:
        """Undoes the start of its only sequence: the request is as if it had just arrived."""
        self._started = 0
        self._free_all()

    def began(self, index: int) -> None:
        """The engine has read the prompt of sequence `index`."""
        self._unread_cost -= self._unread.pop(index, 0)
        self._all.serve()

    def ended(self, index: int) -> None:
        """The engine no longer has sequence `index`, which had started."""
        self._unread_cost -= self._unread.pop(index, 0)
        self._free(self.slots)

    def leave(self) -> None:
        """The request has ended: it waits no more and holds nothing. Safe to call twice."""
        self._all.stop_waiting(self)
        self._free_all()
        self.task = None  # its frames refer to the place

    def _free_all(self) -> None:
        self._unread.clear()
        self._unread_cost = 0
        self._free(self.held)

    def _free(self, slots: int) -> None:
        self.held -= slots
        self._all.free(self.demand.key, slots)


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
        self.queue: QueueShares[Place] = QueueShares()
        self.queue_rate = QueueRate(clock)
        self.is_open = True
        self._keys: defaultdict[str | None, KeyQueue[Place]] = defaultdict(KeyQueue)
        self._arrivals = 0
        self._waiting = 0
        # A request waits for more slots than it may have now. So that others do not overtake it for
        # ever, keys that hold so many slots or more start nothing.
        self._waits_from = math.inf

    @property
    def in_use(self) -> int:
        """The slots that requests hold."""
        return self.total - self._free

    def may_start(self, key: str | None) -> bool:
        """Whether a request of an API key that needs one slot would start now."""
        return self.is_open and self._keys[key].held < self._waits_from and self.room(key) > 0

    def room(self, key: str | None) -> int:
        """The most slots that the next sequence of an API key may have now."""
        num_held, limits = self._keys[key].held, self.limits
        if not num_held or not limits.reserved or not self._is_shared():
            return self._free
        return limits.rows - self.in_use - min(num_held, limits.reserved)

    def place(self, demand: Demand) -> Place:
        """A place for a request that has arrived; `Place.leave` ends it."""
        self._arrivals += 1
        return Place(self, demand, self._arrivals)

    def close(self) -> None:
        """Lets no request start from now on."""
        self.is_open = False
        self.serve()

    def open(self) -> None:
        """Lets requests start again, in order. Does nothing if they may."""
        self.is_open = True
        self.serve()

    def start_now(self, place: Place) -> bool:
        """See `Place.start_now`."""
        key = place.demand.key
        if self._keys[key].held >= self._waits_from or place.slots > self.room(key):
            return False
        if not place.has_room:
            return False
        if place.is_queued and not self.is_open:
            return False
        self._take(place)
        return True

    def wait(self, place: Place) -> "asyncio.Future[None]":
        """Makes a place wait. The result is done when its next sequence has started."""
        waiter = place.waiter = asyncio.get_running_loop().create_future()
        self._keys[place.demand.key].add(place)
        self._count(place, 1)
        self.serve()
        return waiter

    def stop_waiting(self, place: Place) -> None:
        """Takes a place out if it still waits."""
        if place.waiter is not None:
            self._end_wait(place).cancel()
            self.serve()

    def withdraw(self, places: Iterable[Place]) -> None:
        """Takes places out of the queue, of which none has started."""
        for place in places:
            if place.waiter is not None:
                self._end_wait(place).cancel()
            self.queue.discard(place)
        self.serve()

    def free(self, key: str | None, slots: int) -> None:
        """Takes slots of a key's request back."""
        self._keys[key].held -= slots
        self._free += slots
        self.serve()

    def serve(self) -> None:
        """Hands out the free slots."""
        self._waits_from = math.inf
        while self._waiting and (place := self._next()) is not None:
            was_queued, waiter = place.is_queued, self._end_wait(place)
            if waiter.cancelled():  # its request ends in this pass of the event loop
                continue
            if was_queued:
                self.queue_rate.count()
            self._take(place)
            waiter.set_result(None)

    def _next(self) -> Place | None:
        found = [
            (place.demand.priority, key.held, place.held, place.number, place)
            for key in self._keys.values()
            if (place := key.next(with_queue=self.is_open)) is not None
        ]
        self._waits_from = math.inf
        for _, held, _, _, place in sorted(found):
            if held >= self._waits_from:
                continue
            if place.slots <= self.room(place.demand.key):
                return place
            self._waits_from = held if place.slots <= self._free else 0
        return None

    def _take(self, place: Place) -> None:
        place.take()
        self._keys[place.demand.key].held += place.slots
        self._free -= place.slots

    def _end_wait(self, place: Place) -> "asyncio.Future[None]":
        assert place.waiter is not None
        waiter, place.waiter = place.waiter, None
        self._keys[place.demand.key].remove(place)
        self._count(place, -1)
        return waiter

    def _count(self, place: Place, sign: int) -> None:
        self._waiting += sign
        if place.is_queued:
            self.num_queued += sign
            self.queue_rate.watch(has_queue=self.num_queued > 0)
            change = self.queue.add if sign > 0 else self.queue.discard
            change(place)
