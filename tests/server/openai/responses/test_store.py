"""The limits of the store, and chains of responses in it."""

import random
from collections.abc import AsyncGenerator

import pytest

from server.errors import ApiError, Overloaded
from server.openai.responses.store import (
    OVERHEAD_BYTES,
    BrokenChain,
    ResponseStore,
    StoredResponse,
)

OWNER = "owner"


def stored(
    name: str, previous: str | None = None, size: int = 100, owner: str = OWNER
) -> StoredResponse:
    return StoredResponse(name, owner, previous, "completed", b"x" * size, b"[]", b"[]")


def everything(store: ResponseStore) -> dict[str, StoredResponse]:
    entries = {k: v for shelf in store._shelves.values() for k, v in shelf.entries.items()}
    return {k: v for k, v in entries.items() if isinstance(v, StoredResponse)}


def ids(store: ResponseStore, *names: str) -> str:
    """Those of the names that are stored, without a use."""
    return "".join(name for name in names if name in everything(store))


def test_the_least_recently_used_is_dropped_over_the_number() -> None:
    store = ResponseStore(2, 10**6)
    for name in "ab":
        store.add(stored(name))
    assert store.find("a", OWNER) is not None
    store.add(stored("c"))
    assert ids(store, "a", "b", "c") == "ac"
    assert len(store) == 2


def test_the_least_recently_used_are_dropped_over_the_bytes() -> None:
    one = stored("a").num_bytes
    assert one == 104 + OVERHEAD_BYTES
    store = ResponseStore(100, 3 * one)
    for name in "abc":
        store.add(stored(name))
    assert store.num_bytes == 3 * one
    store.add(stored("d", size=100 + one))
    assert ids(store, "a", "b", "c", "d") == "cd"
    assert store.num_bytes == 3 * one


def test_a_response_over_the_limit_of_bytes_is_not_stored_and_drops_nothing() -> None:
    store = ResponseStore(10, 2 * stored("a").num_bytes)
    store.add(stored("a"))
    store.add(stored("b", size=10_000))
    assert ids(store, "a", "b") == "a"


@pytest.mark.parametrize("limits", [(0, 10**6), (10, 0)])
def test_a_limit_of_zero_stores_nothing(limits: tuple[int, int]) -> None:
    store = ResponseStore(*limits)
    assert not store.is_enabled
    store.add(stored("a"))
    assert len(store) == 0


def test_no_owner_finds_the_response_of_another() -> None:
    store = ResponseStore(10, 10**6)
    store.add(stored("a"))
    assert store.find("a", "another") is None
    assert store.find("b", OWNER) is None


def test_a_chain_is_found_from_its_oldest_response() -> None:
    store = ResponseStore(10, 10**6)
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("d", "a")):
        store.add(stored(name, previous))
    found = store.find("c", OWNER)
    assert found is not None
    assert [one.id for one in store.chain(found)] == ["a", "b", "c"]


def test_dropping_breaks_no_chain() -> None:
    store = ResponseStore(4, 10**6)
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("d", "a")):
        store.add(stored(name, previous))
    assert store.find("c", OWNER) is not None
    for name in "xyz":
        store.add(stored(name))
        for kept in ("a", "b", "c", "d"):
            if kept in everything(store):
                store.chain(everything(store)[kept])
    # The end of a chain is dropped before its beginning.
    assert ids(store, "a", "b", "c", "d") == "a"


def test_a_deleted_response_breaks_the_chain_of_those_after_it() -> None:
    store = ResponseStore(10, 10**6)
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        store.add(stored(name, previous))
    first, last = store.find("a", OWNER), store.find("c", OWNER)
    assert first is not None
    assert last is not None
    store.delete(first)
    with pytest.raises(BrokenChain) as broken:
        store.chain(last)
    assert broken.value.missing_id == "a"
    assert store.num_bytes == 2 * first.num_bytes


def test_over_the_number_the_owner_with_most_loses_the_least_recent() -> None:
    store = ResponseStore(4, 10**6)
    store.add(stored("a", owner="alice"))
    for name in "vwxyz":
        store.add(stored(name, owner="bob"))
    assert ids(store, *"avwxyz") == "axyz"
    store.add(stored("b", "a", owner="alice"))
    assert ids(store, *"abvwxyz") == "abyz"
    # Both store as much: the one who adds one has more, and loses one.
    store.add(stored("c", "b", owner="alice"))
    assert ids(store, *"abcyz") == "abyz"
    assert len(store) == 4


def test_over_the_bytes_the_owner_with_most_bytes_loses_the_least_recent() -> None:
    one = stored("a").num_bytes
    store = ResponseStore(100, 5 * one)
    for name in "abc":
        store.add(stored(name, owner="alice"))
    # Larger than all of the other's together: it is its owner's only one, and is dropped.
    store.add(stored("x", size=100 + 3 * one, owner="bob"))
    assert ids(store, *"abcx") == "abc"
    store.add(stored("y", size=100 + one, owner="bob"))
    assert ids(store, *"abcy") == "abcy"
    store.add(stored("z", size=100 + one, owner="bob"))
    assert ids(store, *"abcyz") == "abcz"
    assert store.num_bytes == 5 * one


@pytest.mark.parametrize("seed", range(20))
def test_whatever_many_owners_store_no_chain_breaks_and_the_limits_hold(seed: int) -> None:
    rng, store, made = random.Random(seed), ResponseStore(12, 15_000), list[StoredResponse]()
    for number in range(200):
        owner = rng.choice("aaab" if number < 100 else "bcd")
        if made and rng.random() < 0.3:
            store.find(rng.choice(made).id, owner)
        own = [each for each in everything(store).values() if each.owner == owner]
        previous = rng.choice(own).id if own and rng.random() < 0.7 else None
        made.append(stored(str(number), previous, rng.randint(1, 1500), owner))
        store.add(made[-1])
        found = everything(store)
        for response in found.values():
            store.chain(response)
        assert len(store) == len(found) <= 12
        assert store.num_bytes == sum(each.num_bytes for each in found.values()) <= 15_000


class Running:
    """A response that runs, with events of a size that its test sets."""

    def __init__(self, name: str, owner: str) -> None:
        self.id, self.owner, self.num_event_bytes = name, owner, 0

    def snapshot(self) -> StoredResponse:
        return stored(self.id, owner=self.owner)

    def drop_events(self) -> None:
        self.num_event_bytes = 0

    async def follow(self, number: int) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError
        yield b""

    async def stop(self, reason: ApiError | None) -> StoredResponse:
        raise NotImplementedError


def test_the_events_of_those_that_run_drop_stored_ones_then_the_most_events() -> None:
    store = ResponseStore(10, 10_000)
    store.add(stored("small", owner="b", size=100))
    store.add(stored("old", owner="a", size=100))
    first, second = Running("first", "a"), Running("second", "a")
    for running in (first, second):
        store.begin(running)
    store.grow(first, 4000)
    store.grow(second, 5000)
    # 9,000 bytes of events and two stored ones are too much: the owner of most loses a stored one.
    assert store.find("old", "a") is None
    assert (first.num_event_bytes, second.num_event_bytes) == (4000, 5000)
    store.grow(second, 1000)
    assert (first.num_event_bytes, second.num_event_bytes) == (4000, 0)
    assert store.find("small", "b") is not None
    store.end(first)
    store.end(second)
    small = store.find("small", "b")
    assert small is not None
    assert (store.num_bytes, store.num_running) == (small.num_bytes, 0)


def test_as_many_run_as_can_be_stored() -> None:
    store = ResponseStore(2, 10_000)
    for name in ("one", "two"):
        store.begin(Running(name, "a"))
    with pytest.raises(Overloaded, match="--max-stored-responses"):
        store.begin(Running("three", "b"))
    running = store.running("one", "a")
    assert running is not None
    assert store.running("one", "b") is None
    assert [each.id for each in store.all_running()] == ["one", "two"]
    store.end(running)
    store.begin(Running("three", "b"))
