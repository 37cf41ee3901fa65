"""A job's sequences through the engine: started together, merged as they arrive, ended together.

Closing the generators is what aborts: whoever iterates must close them (`aclosing`).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from engine_adapter.types import Delta
from server.openai.request import Job
from server.state import State

T = TypeVar("T")


async def generate(state: State, job: Job) -> AsyncGenerator[tuple[int, Delta], None]:
    """Yields (choice, delta) as the engine makes them. Raises the first choice's failure."""
    streams = [state.engine.generate(request) for request in job.requests]
    async with aclosing(merge(streams)) as merged:
        async for item in merged:
            yield item


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yields (index of the stream, item) in order of arrival; closes all streams at its end.

    The first exception of any stream is raised, and ends the others.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    arrivals: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(i, stream, arrivals)) for i, stream in enumerate(streams)]
    try:
        running = len(pumps)
        while running:
            arrival = await arrivals.get()
            if arrival is None:
                running -= 1
            elif isinstance(arrival, BaseException):
                raise arrival
            else:
                yield arrival
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    index: int,
    stream: AsyncGenerator[T, None],
    arrivals: asyncio.Queue[tuple[int, T] | BaseException | None],
) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                arrivals.put_nowait((index, item))
    except Exception as error:
        arrivals.put_nowait(error)
    else:
        arrivals.put_nowait(None)
