"""The queue by API keys: which request of a key is next, and which give their places to another."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Generic, Protocol, TypeVar

from server.control.admission.request_cost import RequestCost


class QueuedRequest(Protocol):
    """A request of which no sequence has begun. `number` grows with each arrival."""

    cost: RequestCost
    number: int


class WaitingRequest(QueuedRequest, Protocol):
    """A request that waits for its next sequence."""

    slots_held: int

    @property
    def is_queued(self) -> bool:
        """Whether none of its sequences has started."""
        ...

    @property
    def fits_slice(self) -> bool:
        """Whether its slice has room for its next sequence."""
        ...


R = TypeVar("R", bound=QueuedRequest)
W = TypeVar("W", bound=WaitingRequest)


class KeyQueue(Generic[W]):
    """The requests of one API key that wait.

    Attributes:
        slots_held: by its requests.
    """

    def __init__(self) -> None:
        self.slots_held = 0
        # (Priority, number, request) of those that wait for their first sequence, sorted.
        self._queue: list[tuple[int, int, W]] = []
        # Those that wait for a further one.
        self._continuing: set[W] = set()

    def add(self, request: W) -> None:
        """Adds a request that waits from now on."""
        if request.is_queued:
            insort(self._queue, (request.cost.priority, request.number, request))
        else:
            self._continuing.add(request)

    def remove(self, request: W) -> None:
        """Takes a request out that waits."""
        if request in self._continuing:
            self._continuing.remove(request)
        else:
            del self._queue[bisect_left(self._queue, (request.cost.priority, request.number))]

    def next(self, *, with_queue: bool) -> W | None:
        """The request that should start a sequence first; `None` if none could.

        Args:
            with_queue: a request may start its first sequence.
        """
        candidates = [request for request in self._continuing if request.fits_slice]
        if with_queue and self._queue:
            candidates.append(self._queue[0][2])
        return min(
            candidates, key=lambda r: (r.cost.priority, r.slots_held, r.number), default=None
        )


class _Share(Generic[R]):
    """The requests of one key: (priority, number, request), those that go first at the front."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int, R]] = []
        self.prompt_tokens = 0

    def __len__(self) -> int:
        return len(self.requests)

    def from_end(self, place: int) -> R:
        """The request so many places before the last one."""
        return self.requests[-1 - place][2]


class QueueShares(Generic[R]):
    """The requests in the queue, by key. Lives on the event loop.

    A full queue takes a request if its key, with it, still queues less than the key that queues
    most. That key's last request of its highest `priority` value gives its place. So the keys that
    want more than their part of the queue share it evenly, and a request that is sent again at once
    does not take its place back. The same holds for prompt tokens, where several requests may give
    their places.

    Attributes:
        num_requests, prompt_tokens: of all keys together.
    """

    def __init__(self) -> None:
        self.num_requests = 0
        self.prompt_tokens = 0
        self._shares: dict[str | None, _Share[R]] = {}

    def add(self, request: R) -> None:
        """Counts a request that has entered the queue."""
        cost = request.cost
        share = self._shares.setdefault(cost.key, _Share())
        insort(share.requests, (cost.priority, request.number, request))
        self._count(share, cost, 1)

    def discard(self, request: R) -> None:
        """Takes a request out, if it is in the queue."""
        cost = request.cost
        share = self._shares.get(cost.key, _Share())
        index = bisect_left(share.requests, (cost.priority, request.number))
        if index == len(share) or share.requests[index][2] is not request:
            return
        del share.requests[index]
        self._count(share, cost, -1)
        if not share.requests:
            del self._shares[cost.key]

    def gives_place_to(self, key: str | None) -> bool:
        """Whether a full queue has a place for another request of the key."""
        num_requests = len(self._shares.get(key, ()))
        return num_requests + 1 < len(self._greediest())

    def victims_for(self, cost: RequestCost, max_requests: int, max_tokens: int) -> list[R] | None:
        """The requests that must leave the queue for another one; `None` if it gets no place.

        An empty queue takes a request of any size.

        Args:
            max_requests, max_tokens: the limits of requests and of prompt tokens.
        """
        victims: list[R] = []
        if self.num_requests >= max_requests:
            if not self.gives_place_to(cost.key):
                return None
            victims = [self._greediest().from_end(0)]
        remaining = self.prompt_tokens - sum(victim.cost.prompt_tokens for victim in victims)
        excess = remaining + cost.prompt_tokens - max_tokens
        if excess <= 0 or self.num_requests == len(victims):
            return victims
        more = self._victims_by_tokens(cost, excess, victims)
        return None if more is None else [*victims, *more]

    def _victims_by_tokens(
        self, cost: RequestCost, excess: int, victims: Sequence[R]
    ) -> list[R] | None:
        """Those that must leave beside `victims`, so that `excess` prompt tokens do."""
        share = self._shares.get(cost.key)
        level = cost.prompt_tokens + (0 if share is None else share.prompt_tokens)
        tokens = {key: share.prompt_tokens for key, share in self._shares.items()}
        for victim in victims:
            tokens[victim.cost.key] -= victim.cost.prompt_tokens
        if sum(max(0, count - level) for count in tokens.values()) < excess:
            return None
        keys = [victim.cost.key for victim in victims]
        # (Tokens of a key, negative for the heap; an index that decides between equals; the key;
        # how many of its requests leave.)
        heap = [(-count, i, key, keys.count(key)) for i, (key, count) in enumerate(tokens.items())]
        heapify(heap)
        more: list[R] = []
        while excess > 0:
            count, i, key, num_victims = heap[0]
            victim = self._shares[key].from_end(num_victims)
            more.append(victim)
            excess -= victim.cost.prompt_tokens
            heapreplace(heap, (count + victim.cost.prompt_tokens, i, key, num_victims + 1))
        return more

    def _greediest(self) -> _Share[R]:
        """The key with the most requests."""
        return max(self._shares.values(), key=len, default=_Share())

    def _count(self, share: _Share[R], cost: RequestCost, sign: int) -> None:
        self.num_requests += sign
        self.prompt_tokens += sign * cost.prompt_tokens
        share.prompt_tokens += sign * cost.prompt_tokens
