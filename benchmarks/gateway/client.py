"""The load: streams over HTTP, with the time of each event and nothing parsed.

A stream ends well if it has as many events as expected and the end of a chunked response after
`data: [DONE]`. uvloop is used, because the client shares the machine with the measured server.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import uvloop

PATH = "/v1/chat/completions"
EVENT_END = b"\n\n"
STREAM_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
TIMEOUT_S = 300.0

T = TypeVar("T")


@dataclass(slots=True)
class Stream:
    """One stream, as far as it has come.

    Attributes:
        sent_s: when the request was written, in seconds of `time.monotonic`.
        arrivals_s: of each event, in order.
        num_bytes: of the whole response, its head included.
        problem: why it is incomplete; `None` if it is whole.
    """

    sent_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    num_bytes: int = 0
    problem: str | None = None


class _Connection(asyncio.Protocol):
    """A connection for one request."""

    def __init__(self, request: bytes, num_events: int) -> None:
        self.stream = Stream()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._num_events = num_events
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.stream.sent_s = time.monotonic()
        # uvloop's transports do not inherit from asyncio's.
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        stream = self.stream
        stream.num_bytes += len(data)
        num_events = data.count(EVENT_END)
        if data[:1] == b"\n" and self._tail[-1:] == b"\n":
            num_events += 1
        if num_events == 1:
            stream.arrivals_s.append(now_s)
        elif num_events:
            stream.arrivals_s.extend([now_s] * num_events)
        self._tail = data if len(data) >= len(STREAM_END) else self._tail + data

    def connection_lost(self, exc: Exception | None) -> None:
        num_events = len(self.stream.arrivals_s)
        if exc is not None:
            self.stream.problem = str(exc) or type(exc).__name__
        elif not self._tail.endswith(STREAM_END):
            self.stream.problem = f"ended after {num_events} events with {self._tail[-200:]!r}"
        elif num_events != self._num_events:
            self.stream.problem = f"has {num_events} events instead of {self._num_events}"
        if not self.closed.done():
            self.closed.set_result(None)


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one side.

    Attributes:
        port: on 127.0.0.1.
        body: of every request.
        num_events: that each answer has.
    """

    port: int
    body: bytes
    num_events: int

    async def stream(self) -> Stream:
        """Sends one request and reads its answer."""
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        request = head.encode() + self.body
        loop = asyncio.get_running_loop()
        transport, connection = await loop.create_connection(
            lambda: _Connection(request, self.num_events), "127.0.0.1", self.port
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await connection.closed
        except TimeoutError:
            connection.stream.problem = f"no end after {TIMEOUT_S:g} s"
        finally:
            transport.abort()
        return connection.stream

    async def in_turn(self, streams: int, concurrency: int) -> list[Stream]:
        """Sends `streams` requests, `concurrency` at a time."""
        places = asyncio.Semaphore(concurrency)

        async def one() -> Stream:
            async with places:
                return await self.stream()

        return whole(await asyncio.gather(*(one() for _ in range(streams))))

    async def at_times(self, times_s: Sequence[float]) -> list[Stream]:
        """Sends a request at each of these times, in seconds from now."""

        async def one(time_s: float) -> Stream:
            await asyncio.sleep(time_s)
            return await self.stream()

        return whole(await asyncio.gather(*map(one, times_s)))


def whole(streams: Sequence[Stream]) -> list[Stream]:
    """The streams. Raises `RuntimeError` if one is incomplete or longer than another."""
    broken = [stream.problem for stream in streams if stream.problem is not None]
    if broken:
        raise RuntimeError(f"{len(broken)} of {len(streams)} streams failed: {broken[0]}")
    if len({stream.num_bytes for stream in streams}) > 1:
        raise RuntimeError("the same request had answers of different lengths")
    return list(streams)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs the coroutine on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
