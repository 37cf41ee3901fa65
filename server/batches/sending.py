"""Sends the requests of a file to the application in the same process, several at a time.

`specgate batch` and `/v1/batches` share this: what a line is answered does not depend on the way.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import httpx

from engine_adapter.seam.cancellation import was_cancelled
from server.batches.lines import (
    BadLine,
    BatchError,
    Entry,
    Request,
    bad_line_entry,
    response_entry,
)
from server.http.headers import RETRY_AFTER

MAX_ATTEMPTS = 3
"""How often a request is sent if the engine dies while it runs."""

READY_POLL_S = 0.5

NextItem = Callable[[], Awaitable[Request | BadLine | None]]
"""The next line of the input; `None` after the last one."""

WriteEntry = Callable[[Request | BadLine, Callable[[], Entry]], Awaitable[None]]
"""Makes the entry of a line, which takes long for a large answer, and writes it."""


class EngineGone(Exception):
    """The engine is dead and is not replaced; the message is the server's."""


async def answer_lines(
    client: httpx.AsyncClient, next_item: NextItem, write: WriteEntry, concurrency: int
) -> None:
    """Answers lines until none is left, so many at a time.

    Raises:
        EngineGone: the engine is dead; lines without an answer remain.
        BatchError: a file cannot be read or written.
    """

    async def work() -> None:
        while (item := await next_item()) is not None:
            if isinstance(item, BadLine):
                await write(item, partial(bad_line_entry, item))
            else:
                await write(item, partial(response_entry, item, await send(client, item)))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        expected = [e for e in _leaves(errors) if isinstance(e, EngineGone | BatchError)]
        if not expected:
            raise
        raise expected[0] from None


async def send(client: httpx.AsyncClient, request: Request) -> httpx.Response:
    """Sends a request until it is answered, and returns its response.

    It is sent again while the engine has no room for it, and, up to `MAX_ATTEMPTS` times in all,
    if the engine died and is back. Raises `EngineGone`.
    """
    attempts = 0
    while True:
        response = await client.post(
            request.url, content=request.body, headers={"Content-Type": "application/json"}
        )
        if was_cancelled():
            # The application answers a cancelled request, as a server that stops does.
            raise asyncio.CancelledError
        if response.status_code == 429:
            await asyncio.sleep(float(response.headers.get(RETRY_AFTER, 1)))
            continue
        if response.status_code != 503:
            return response
        attempts += 1
        await _until_ready(client)
        if attempts == MAX_ATTEMPTS:
            return response


async def _until_ready(client: httpx.AsyncClient) -> None:
    """Waits while the engine is being replaced. Raises `EngineGone`."""
    while (response := await client.get("/ready")).status_code != 200:
        if RETRY_AFTER not in response.headers:
            raise EngineGone(response.json()["error"]["message"])
        await asyncio.sleep(READY_POLL_S)


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
