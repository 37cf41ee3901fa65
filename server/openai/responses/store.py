"""The responses that clients can read again and continue, in memory.

A response that continues another one needs that one's items, so the store keeps chains. Each use
of a response makes its whole chain recent, its oldest response last. So the least recent response
never has a successor that is stored, and dropping it breaks no chain.
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
    """

    id: str
    owner: str
    previous_id: str | None
    status: str
    body: bytes
    items: bytes

    @property
    def num_bytes(self) -> int:
        """What it counts for in the store."""
        return len(self.body) + len(self.items) + OVERHEAD_BYTES


class BrokenChain(LookupError):
    """A response that another one continues, directly or not, is not stored any more."""

    def __init__(self, missing_id: str) -> None:
        super().__init__(missing_id)
        self.missing_id = missing_id


class ResponseStore:
    """Stored responses, the least recent first. Lives on the event loop.

    Args:
        max_responses: the most responses; 0 stores none.
        max_bytes: the most bytes, counted by `StoredResponse.num_bytes`.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def is_enabled(self) -> bool:
        """Whether anything can be stored."""
        return self.max_responses > 0 and self.max_bytes > 0

    def add(self, response: StoredResponse) -> None:
        """Stores a response with a new id, and drops the least recent ones over the limits.

        A response that alone is over the limit of bytes is not stored, and drops nothing.
        """
        if not self.is_enabled or response.num_bytes > self.max_bytes:
            return
        self._stored[response.id] = response
        self.num_bytes += response.num_bytes
        self._use(response)
        while len(self._stored) > self.max_responses or self.num_bytes > self.max_bytes:
            self._remove(next(iter(self._stored)))

    def find(self, response_id: str, owner: str) -> StoredResponse | None:
        """The owner's response of this id; it becomes the most recent one."""
        response = self._stored.get(response_id)
        if response is None or response.owner != owner:
            return None
        self._use(response)
        return response

    def chain(self, response: StoredResponse) -> list[StoredResponse]:
        """The responses that it continues, the oldest first, and itself. Raises `BrokenChain`."""
        found = [response]
        while (previous_id := found[-1].previous_id) is not None:
            previous = self._stored.get(previous_id)
            if previous is None:
                raise BrokenChain(previous_id)
            found.append(previous)
        return found[::-1]

    def delete(self, response: StoredResponse) -> None:
        """Removes a response; those that continue it cannot be continued any more."""
        self._remove(response.id)

    def _remove(self, response_id: str) -> None:
        self.num_bytes -= self._stored.pop(response_id).num_bytes

    def _use(self, response: StoredResponse) -> None:
        """Makes a response recent, then those that it continues: they are dropped after it."""
        used: StoredResponse | None = response
        while used is not None:
            self._stored.move_to_end(used.id)
            used = self._stored.get(used.previous_id) if used.previous_id is not None else None
