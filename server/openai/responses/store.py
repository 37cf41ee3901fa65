"""The responses and conversations that clients can read again and continue, in memory.

A response that continues another one needs that one's items, so the store keeps chains. Each use
of a response makes its whole chain recent, its oldest response last. All responses of a chain have
one owner. So the least recent response of an owner never has a successor that is stored, and
dropping it breaks no chain.

Over the limit of responses, the owner with the most responses loses the least recent one; over the
limit of bytes, the owner with the most bytes. So an owner who stores little keeps it, whatever
others store. A conversation counts as a response.

A response that runs in the background is here too: its place is taken, and the events that are kept
of its stream count as bytes. An owner over the limit who stores nothing loses such events, those of
the response that has most, never the response itself.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from server.errors import ApiError, Overloaded

OVERHEAD_BYTES = 512
"""Counted for a response beside its text: its entry, its keys and Python's objects."""

ITEM_OVERHEAD_BYTES = 256
"""Counted for an item of a conversation beside its text."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that has ended, or what is known of one that runs.

    Attributes:
        id: the response's id.
        owner: who may read it; see `server.http.auth.key_owner`.
        previous_id: the response that it continues.
        status: its status, as in the response.
        body: the whole response, as JSON.
        items: the items of its own input, as JSON; not those of the response that it continues.
        output: the items of its output, as JSON, without log probabilities. A conversation reads
            these, for each response of its chain: the body also has formats and tools.
        events: of its stream, each with the empty line that ends it; empty if none are kept.
    """

    id: str
    owner: str
    previous_id: str | None
    status: str
    body: bytes
    items: bytes
    output: bytes
    events: bytes = b""

    @property
    def num_bytes(self) -> int:
        """What it counts for in the store."""
        parts = (self.body, self.items, self.output, self.events)
        return sum(map(len, parts)) + OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation as it is now; a change stores another one in its place.

    Attributes:
        id: the conversation's id.
        owner: who may read it.
        created: Unix time in seconds.
        metadata: the client's, as JSON.
        items: id -> the item as JSON, in order.
    """

    id: str
    owner: str
    created: int
    metadata: bytes
    items: Mapping[str, bytes]

    @property
    def previous_id(self) -> None:
        """It continues no other one."""
        return None

    @property
    def num_bytes(self) -> int:
        """What it counts for in the store."""
        items = sum(map(len, self.items.values())) + ITEM_OVERHEAD_BYTES * len(self.items)
        return items + len(self.metadata) + OVERHEAD_BYTES


StoredEntry = StoredResponse | StoredConversation
"""What an owner may lose when others need its place."""


class RunningResponse(Protocol):
    """A response that runs in the background.

    Attributes:
        id: the response's id.
        owner: who may read it.
        num_event_bytes: what its events count for.
    """

    id: str
    owner: str
    num_event_bytes: int

    def snapshot(self) -> StoredResponse:
        """What is known of it now."""
        ...

    def drop_events(self) -> None:
        """Keeps no events from now on; `num_event_bytes` is then 0."""
        ...

    def follow(self, number: int) -> AsyncGenerator[bytes, None]:
        """Its events from this number on, encoded, until it ends. Raises `InvalidField`."""
        ...

    async def stop(self, reason: ApiError | None) -> StoredResponse:
        """Ends it, as cancelled or as failed for a reason, and returns what became of it."""
        ...


class BrokenChain(LookupError):
    """A response that another one continues, directly or not, is not stored any more."""

    def __init__(self, missing_id: str) -> None:
        super().__init__(missing_id)
        self.missing_id = missing_id


class _Shelf:
    """What one owner has: what is stored, the least recent first, and the responses that run."""

    def __init__(self) -> None:
        self.entries: OrderedDict[str, StoredEntry] = OrderedDict()
        self.running: dict[str, RunningResponse] = {}
        self.num_bytes = 0


class ResponseStore:
    """Responses and conversations of all owners. Lives on the event loop.

    Args:
        max_responses: the most responses; 0 stores none. As many may run in the background.
        max_bytes: the most bytes, counted by `StoredResponse.num_bytes`, with the events of those
            that run.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_running = 0
        self._num_entries = 0
        self._shelves: dict[str, _Shelf] = {}

    def __len__(self) -> int:
        return self._num_entries

    @property
    def is_enabled(self) -> bool:
        """Whether anything can be stored."""
        return self.max_responses > 0 and self.max_bytes > 0

    def add(self, entry: StoredEntry) -> bool:
        """Stores an entry with a new id, and drops others over the limits.

        One that alone is over the limit of bytes is not stored, and drops nothing. Returns whether
        it is stored.
        """
        if not self.is_enabled or entry.num_bytes > self.max_bytes:
            return False
        shelf = self._shelves.setdefault(entry.owner, _Shelf())
        shelf.entries[entry.id] = entry
        self._count(shelf, entry, 1)
        _use(shelf, entry)
        while self._num_entries > self.max_responses:
            self._drop_from(max(self._shelves.values(), key=lambda each: len(each.entries)))
        self._fit_bytes()
        return entry.id in shelf.entries

    def replace(self, conversation: StoredConversation) -> bool:
        """Stores a conversation in the place of the one with its id. Returns whether it fits."""
        if conversation.num_bytes > self.max_bytes:
            return False
        self.delete(conversation)
        return self.add(conversation)

    def find_conversation(self, conversation_id: str, owner: str) -> StoredConversation | None:
        """The owner's conversation of this id; it becomes the most recent entry."""
        entry = self._find(conversation_id, owner)
        return entry if isinstance(entry, StoredConversation) else None

    def begin(self, response: RunningResponse) -> None:
        """Takes in a response that runs. Raises `Overloaded` if too many run."""
        if self.num_running >= self.max_responses:
            raise Overloaded(
                f"{self.num_running} responses run in the background, and --max-stored-responses "
                "allows no more"
            )
        shelf = self._shelves.setdefault(response.owner, _Shelf())
        shelf.running[response.id] = response
        self.num_running += 1

    def grow(self, response: RunningResponse, num_bytes: int) -> None:
        """Counts more bytes of the events of a response that runs, and drops others."""
        response.num_event_bytes += num_bytes
        self._add_bytes(self._shelves[response.owner], num_bytes)
        self._fit_bytes()

    def end(self, response: RunningResponse) -> None:
        """Removes a response that runs, with the bytes of its events."""
        shelf = self._shelves[response.owner]
        del shelf.running[response.id]
        self.num_running -= 1
        self._add_bytes(shelf, -response.num_event_bytes)
        self._forget_if_empty(response.owner)

    def running(self, response_id: str, owner: str) -> RunningResponse | None:
        """The owner's response of this id, if it runs."""
        shelf = self._shelves.get(owner)
        return None if shelf is None else shelf.running.get(response_id)

    def all_running(self) -> Iterator[RunningResponse]:
        """The responses of all owners that run."""
        for shelf in self._shelves.values():
            yield from shelf.running.values()

    def find(self, response_id: str, owner: str) -> StoredResponse | None:
        """The owner's response of this id; it becomes the most recent one.

        Of one that runs, what is known of it now.
        """
        if (running := self.running(response_id, owner)) is not None:
            return running.snapshot()
        entry = self._find(response_id, owner)
        return entry if isinstance(entry, StoredResponse) else None

    def _find(self, entry_id: str, owner: str) -> StoredEntry | None:
        shelf = self._shelves.get(owner)
        entry = None if shelf is None else shelf.entries.get(entry_id)
        if shelf is not None and entry is not None:
            _use(shelf, entry)
        return entry

    def chain(self, response: StoredResponse) -> list[StoredResponse]:
        """The responses that it continues, the oldest first, and itself. Raises `BrokenChain`."""
        shelf = self._shelves.get(response.owner, _Shelf())
        members = [response]
        while (previous_id := members[-1].previous_id) is not None:
            previous = shelf.entries.get(previous_id)
            if not isinstance(previous, StoredResponse):
                raise BrokenChain(previous_id)
            members.append(previous)
        return members[::-1]

    def delete(self, entry: StoredEntry) -> None:
        """Removes an entry; responses that continue it cannot be continued any more."""
        shelf = self._shelves[entry.owner]
        self._count(shelf, shelf.entries.pop(entry.id), -1)
        self._forget_if_empty(entry.owner)

    def _fit_bytes(self) -> None:
        while self.num_bytes > self.max_bytes:
            shelf = max(self._shelves.values(), key=lambda each: each.num_bytes)
            if shelf.entries:
                self._drop_from(shelf)
                continue
            largest = max(shelf.running.values(), key=lambda each: each.num_event_bytes)
            self._add_bytes(shelf, -largest.num_event_bytes)
            largest.drop_events()

    def _drop_from(self, shelf: _Shelf) -> None:
        self.delete(next(iter(shelf.entries.values())))

    def _count(self, shelf: _Shelf, entry: StoredEntry, sign: int) -> None:
        self._num_entries += sign
        self._add_bytes(shelf, sign * entry.num_bytes)

    def _add_bytes(self, shelf: _Shelf, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        shelf.num_bytes += num_bytes

    def _forget_if_empty(self, owner: str) -> None:
        shelf = self._shelves[owner]
        if not shelf.entries and not shelf.running:
            del self._shelves[owner]


def retention(store: ResponseStore) -> str:
    """How long responses are stored, as a sentence for errors."""
    if not store.is_enabled:
        return "This server stores no responses (--max-stored-responses)."
    return (
        f"This server keeps at most {store.max_responses} responses in memory, {store.max_bytes} "
        "bytes together, until it stops; beyond that the API key that stores most loses those that "
        "it has not used for longest. Send the whole conversation as input, or raise "
        "--max-stored-responses or --max-stored-response-bytes."
    )


def _use(shelf: _Shelf, entry: StoredEntry) -> None:
    """Makes an entry recent, then those that it continues: they are dropped after it."""
    ancestor: StoredEntry | None = entry
    while ancestor is not None:
        shelf.entries.move_to_end(ancestor.id)
        previous = ancestor.previous_id
        ancestor = shelf.entries.get(previous) if previous is not None else None
