"""Several sequences as one stream."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from server.openai.respond import merge


class Source:
    """A stream that records whether it was closed."""

    def __init__(self, *items: str | BaseException, every_s: float = 0.0) -> None:
        self.closed = False
        self._items = items
        self._every_s = every_s

    async def stream(self) -> AsyncGenerator[str, None]:
        try:
            for item in self._items:
                await asyncio.sleep(self._every_s)
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.closed = True


async def test_items_come_in_order_of_arrival() -> None:
    slow, fast = Source("a", "b", every_s=0.03), Source("x", "y", every_s=0.005)
    async with aclosing(merge([slow.stream(), fast.stream()])) as merged:
        got = [item async for item in merged]
    assert got == [(1, "x"), (1, "y"), (0, "a"), (0, "b")]
    assert slow.closed
    assert fast.closed


@pytest.mark.parametrize("count", [1, 2])
async def test_failure_is_raised_and_closes_all(count: int) -> None:
    broken = Source("a", ValueError("broken"))
    others = [Source(*"x" * 100, every_s=0.01) for _ in range(count - 1)]
    async with aclosing(merge([s.stream() for s in (broken, *others)])) as merged:
        assert (await anext(merged))[1] in ("a", "x")
        with pytest.raises(ValueError, match="broken"):
            [item async for item in merged]
    assert all(source.closed for source in (broken, *others))


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_closes_all(count: int) -> None:
    sources = [Source(*"x" * 100, every_s=0.001) for _ in range(count)]
    async with aclosing(merge([source.stream() for source in sources])) as merged:
        await anext(merged)
        await asyncio.sleep(0.01)
    assert all(source.closed for source in sources)


async def test_cancelling_closes_all() -> None:
    sources = [Source("x", every_s=60) for _ in range(2)]

    async def read() -> None:
        async with aclosing(merge([source.stream() for source in sources])) as merged:
            await anext(merged)

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stream_that_is_cancelled_from_within_ends_the_others(count: int) -> None:
    broken = Source("a", asyncio.CancelledError())
    others = [Source(*"x" * 100, every_s=0.01) for _ in range(count - 1)]
    async with asyncio.timeout(5), aclosing(merge([s.stream() for s in (broken, *others)])) as all_:
        with pytest.raises(asyncio.CancelledError):
            [item async for item in all_]
    assert all(source.closed for source in (broken, *others))
