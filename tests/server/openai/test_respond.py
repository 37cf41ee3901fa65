"""Several sequences as one stream."""

import asyncio
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from server.control.admission.limit_errors import FirstTokenTimeout
from server.control.admission.request_cost import RequestCost
from server.control.admission.slots import SlotLimits, Slots, Ticket
from server.openai.respond import _run_all, merge
from server.time_limits import TimeLimit
from tests.server.gateway import eventually


def ticket(sequences: int, at_a_time: int = 9) -> Ticket:
    """A ticket of which the first sequence has started."""
    slots = Slots(SlotLimits(9, 9, 0, at_a_time, 512))
    made = slots.ticket(RequestCost(None, 1, [1] * sequences, sequences))
    assert made.start_now()
    return made


class Source:
    """A stream that records whether it has begun, and whether it was closed."""

    def __init__(self, *items: str | BaseException, every_s: float = 0.0) -> None:
        self.begun = self.closed = False
        self._items = items
        self._every_s = every_s

    async def stream(self) -> AsyncGenerator[str, None]:
        self.begun = True
        try:
            for item in self._items:
                await asyncio.sleep(self._every_s)
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.closed = True


async def test_items_come_in_order_of_arrival() -> None:
    arriving: list[asyncio.Queue[str]] = [asyncio.Queue(), asyncio.Queue()]

    async def stream(queue: asyncio.Queue[str]) -> AsyncGenerator[str, None]:
        while item := await queue.get():
            yield item

    order = [(1, "x"), (1, "y"), (0, "a"), (1, "z"), (0, "b")]
    async with aclosing(merge([stream(queue) for queue in arriving], ticket(2))) as merged:
        for index, item in order:
            arriving[index].put_nowait(item)
            assert await anext(merged) == (index, item)
        for queue in arriving:
            queue.put_nowait("")
        assert [item async for item in merged] == []


@pytest.mark.parametrize("count", [1, 2])
async def test_failure_is_raised_and_closes_all(count: int) -> None:
    broken = Source("a", ValueError("broken"))
    others = [Source(*"x" * 100, every_s=0.01) for _ in range(count - 1)]
    async with aclosing(merge([s.stream() for s in (broken, *others)], ticket(count))) as merged:
        assert (await anext(merged))[1] in ("a", "x")
        with pytest.raises(ValueError, match="broken"):
            [item async for item in merged]
    assert all(source.closed for source in (broken, *others))


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_closes_all(count: int) -> None:
    sources = [Source(*"x" * 100, every_s=0.001) for _ in range(count)]
    async with aclosing(
        merge([source.stream() for source in sources], ticket(len(sources)))
    ) as merged:
        await anext(merged)
        await eventually(lambda: all(source.begun for source in sources))
    assert all(source.closed for source in sources)


async def test_cancelling_closes_all() -> None:
    sources = [Source("x", every_s=60) for _ in range(2)]

    async def read() -> None:
        async with aclosing(
            merge([source.stream() for source in sources], ticket(len(sources)))
        ) as merged:
            await anext(merged)

    task = asyncio.create_task(read())
    await eventually(lambda: all(source.begun for source in sources))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(source.closed for source in sources)


async def test_another_cancellation_does_not_cut_the_closing_of_streams_short() -> None:
    is_closing, is_cancelled_again = asyncio.Event(), asyncio.Event()
    closed = []

    async def stream() -> AsyncGenerator[str, None]:
        try:
            yield "x"
            await asyncio.sleep(60)
        finally:
            is_closing.set()
            await is_cancelled_again.wait()
            closed.append(True)

    arrivals: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(_run_all([stream(), stream()], ticket(2), arrivals))
    assert await arrivals.get() == (0, "x")
    task.cancel()
    await is_closing.wait()
    task.cancel()
    await asyncio.sleep(0)
    is_cancelled_again.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(closed) == 2
    while (arrival := await arrivals.get()) is not None:
        assert arrival == (1, "x")


async def test_streams_that_are_closed_are_freed_without_the_collector(no_collector: None) -> None:
    streams = [Source(*"x" * 100, every_s=0.001).stream() for _ in range(2)]
    freed = [weakref.ref(stream) for stream in streams]
    async with aclosing(merge(streams, ticket(2))) as merged:
        await anext(merged)
    del streams, merged
    await asyncio.sleep(0)
    assert [stream() for stream in freed] == [None, None]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stream_that_is_cancelled_from_within_ends_the_others(count: int) -> None:
    broken = Source("a", asyncio.CancelledError())
    others = [Source(*"x" * 100, every_s=0.01) for _ in range(count - 1)]
    async with (
        asyncio.timeout(60),
        aclosing(merge([s.stream() for s in (broken, *others)], ticket(count))) as all_,
    ):
        with pytest.raises(asyncio.CancelledError):
            [item async for item in all_]
    assert all(source.closed for source in (broken, *others))


async def test_streams_run_in_slices() -> None:
    sources = [Source(name, name, every_s=0.001) for name in "abcde"]
    async with aclosing(merge([s.stream() for s in sources], ticket(5, at_a_time=2))) as merged:
        indices = [index async for index, _ in merged]
    assert sorted(indices) == sorted([0, 1, 2, 3, 4] * 2)
    assert set(indices[:2]) <= {0, 1}
    last = {index: len(indices) - 1 - indices[::-1].index(index) for index in range(5)}
    # The third does not begin before one of the first two has ended.
    assert indices.index(2) > min(last[0], last[1])
    assert all(source.closed for source in sources)


async def test_a_first_item_that_does_not_come_ends_all() -> None:
    for count in (1, 3):
        sources = [Source("x", every_s=60) for _ in range(count)]
        limit = TimeLimit.after(0.05, lambda: FirstTokenTimeout(0.05))
        with pytest.raises(FirstTokenTimeout):
            async with aclosing(merge([s.stream() for s in sources], ticket(count), limit)) as all_:
                await anext(all_)
        # One that did not begin in time has nothing to close.
        assert [source.closed for source in sources] == [source.begun for source in sources]


async def test_a_later_item_may_take_longer_than_the_first() -> None:
    async def stream() -> AsyncGenerator[str, None]:
        yield "a"
        await asyncio.sleep(1.1)
        yield "b"

    limit = TimeLimit.after(1, lambda: FirstTokenTimeout(1))
    async with aclosing(merge([stream()], ticket(1), limit)) as merged:
        assert [item async for _, item in merged] == ["a", "b"]
