"""The requests of one API key that wait for slots."""

from bisect import bisect_left, insort
from typing import Generic, Protocol, TypeVar

from server.control.admission.request_cost import RequestCost


class WaitingRequest(Protocol):
    """A request that waits for its next sequence. `number` grows with each arrival."""

    cost: RequestCost
    number: int
    slots_held: int

    @property
    def is_queued(self) -> bool:
        """Whether none of its sequences has started."""
        ...

    @property
    def fits_slice(self) -> bool:
        """Whether its slice has room for its next sequence."""
        ...


R = TypeVar("R", bound=WaitingRequest)


class KeyQueue(Generic[R]):
    """The requests of one API key that wait.

    Attributes:
        slots_held: by its requests.
    """

    def __init__(self) -> None:
        self.slots_held = 0
        # (Priority, number, request) of those that wait for their first sequence, sorted.
        self._queue: list[tuple[int, int, R]] = []
        # Those that wait for a further one.
        self._continuing: set[R] = set()

    def add(self, request: R) -> None:
        """Adds a request that waits from now on."""
        if request.is_queued:
            insort(self._queue, (request.cost.priority, request.number, request))
        else:
            self._continuing.add(request)

    def remove(self, request: R) -> None:
        """Takes a request out that waits."""
        if request in self._continuing:
            self._continuing.remove(request)
        else:
            del self._queue[bisect_left(self._queue, (request.cost.priority, request.number))]

    def next(self, *, with_queue: bool) -> R | None:
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
