"""The responses that clients can read again and continue, in memory.

A response that continues another one needs that one's items, so the store keeps chains. Each use
of a response makes its whole chain recent, its oldest response last. All responses of a chain have
one owner. So the least recent response of an owner never has a successor that is stored, and
dropping it breaks no chain.

Over the limit of responses, the owner with the most responses loses the least recent one; over the
limit of bytes, the owner with the most bytes. So an owner who stores little keeps it, whatever
others store.
"""

from collections import OrderedDict
from dataclasses import dataclass

OVERHEAD_BYTES = 512
"""Counted for a response beside its text: its entry, its keys and Python's objects."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that has ended.

    Attributes:
        id: the response's id.
        owner: who may read it; see `server.http.auth.key_owner`.
        previous_id: the response that it continues.
        status: its status, as in the response.
        body: the whole response, as JSON.
        items: the items of its own input, as JSON; not those of the response that it continues.
        output: the items of its output, as JSON, without log probabilities. A conversation reads
            these, for each response of its chain: the body also has formats and tools.
    """

    id: str
    owner: str
    previous_id: str | None
    status: str
    body: bytes
    items: bytes
    output: bytes

    @property
    def num_bytes(self) -> int:
        """What it counts for in the store."""
        return len(self.body) + len(self.items) + len(self.output) + OVERHEAD_BYTES


class BrokenChain(LookupError):
    """A response that another one continues, directly or not, is not stored any more."""

    def __init__(self, missing_id: str) -> None:
        super().__init__(missing_id)
        self.missing_id = missing_id


class _Shelf:
    """The stored responses of one owner, the least recent first."""

    def __init__(self) -> None:
        self.responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self.num_bytes = 0


class ResponseStore:
    """Stored responses of all owners. Lives on the event loop.

    Args:
        max_responses: the most responses; 0 stores none.
        max_bytes: the most bytes, counted by `StoredResponse.num_bytes`.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._num_responses = 0
        self._shelves: dict[str, _Shelf] = {}

    def __len__(self) -> int:
        return self._num_responses

    @property
    def is_enabled(self) -> bool:
        """Whether anything can be stored."""
        return self.max_responses > 0 and self.max_bytes > 0

    def add(self, response: StoredResponse) -> None:
        """Stores a response with a new id, and drops others over the limits.

        A response that alone is over the limit of bytes is not stored, and drops nothing.
        """
        if not self.is_enabled or response.num_bytes > self.max_bytes:
            return
        shelf = self._shelves.setdefault(response.owner, _Shelf())
        shelf.responses[response.id] = response
        self._count(shelf, response, 1)
        _use(shelf, response)
        while self._num_responses > self.max_responses:
            self._drop_from(max(self._shelves.values(), key=lambda each: len(each.responses)))
        while self.num_bytes > self.max_bytes:
            self._drop_from(max(self._shelves.values(), key=lambda each: each.num_bytes))

    def find(self, response_id: str, owner: str) -> StoredResponse | None:
        """The owner's response of this id; it becomes the most recent one."""
        shelf = self._shelves.get(owner)
        response = None if shelf is None else shelf.responses.get(response_id)
        if shelf is not None and response is not None:
            _use(shelf, response)
        return response

    def chain(self, response: StoredResponse) -> list[StoredResponse]:
        """The responses that it continues, the oldest first, and itself. Raises `BrokenChain`."""
        shelf = self._shelves.get(response.owner, _Shelf())
        members = [response]
        while (previous_id := members[-1].previous_id) is not None:
            previous = shelf.responses.get(previous_id)
            if previous is None:
                raise BrokenChain(previous_id)
            members.append(previous)
        return members[::-1]

    def delete(self, response: StoredResponse) -> None:
        """Removes a response; those that continue it cannot be continued any more."""
        shelf = self._shelves[response.owner]
        del shelf.responses[response.id]
        self._count(shelf, response, -1)
        if not shelf.responses:
            del self._shelves[response.owner]

    def _drop_from(self, shelf: _Shelf) -> None:
        self.delete(next(iter(shelf.responses.values())))

    def _count(self, shelf: _Shelf, response: StoredResponse, sign: int) -> None:
        self._num_responses += sign
        self.num_bytes += sign * response.num_bytes
        shelf.num_bytes += sign * response.num_bytes


def _use(shelf: _Shelf, response: StoredResponse) -> None:
    """Makes a response recent, then those that it continues: they are dropped after it."""
    ancestor: StoredResponse | None = response
    while ancestor is not None:
        shelf.responses.move_to_end(ancestor.id)
        previous = ancestor.previous_id
        ancestor = shelf.responses.get(previous) if previous is not None else None
