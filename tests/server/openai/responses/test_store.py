"""The limits of the store, and chains of responses in it."""

import pytest

from server.openai.responses.store import (
    OVERHEAD_BYTES,
    BrokenChain,
    ResponseStore,
    StoredResponse,
)

OWNER = "owner"


def stored(name: str, previous: str | None = None, size: int = 100) -> StoredResponse:
    return StoredResponse(name, OWNER, previous, "completed", b"x" * size, b"[]")


def ids(store: ResponseStore, *names: str) -> str:
    """Those of the names that are stored, without a use."""
    return "".join(name for name in names if name in store._stored)


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
    assert one == 102 + OVERHEAD_BYTES
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
            if kept in store._stored:
                store.chain(store._stored[kept])
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
