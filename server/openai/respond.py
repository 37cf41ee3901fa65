"""From a prepared request to the bytes of its response: admit, generate, shape, send."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Protocol, TypeVar

from fastapi.responses import Response
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from engine_adapter.seam.cancellation import was_cancelled
from engine_adapter.seam.types import Delta
from server.control.admission.limit_errors import FirstTokenTimeout, RequestTimeout
from server.control.admission.slots import Ticket
from server.errors import ApiError
from server.http.auth import key_name
from server.http.event_stream import EventStream, until_disconnect
from server.http.exchange import exchange_of
from server.openai.answer_overlap import measured
from server.openai.choices import ChoiceState
from server.openai.recording import Recording
from server.openai.request import AdmittedRequest, Origin, PreparedRequest, admitted
from server.openai.response import ResponseBuilder
from server.openai.usage import draft_headers
from server.state import Runtime
from server.time_limits import TimeLimit, within

T = TypeVar("T")


class Builder(Protocol):
    """Shapes the deltas of one admitted request, in the format of an endpoint.

    For a response in one piece: `add` every delta, then `body`. For a stream: the `events` of
    every delta, then the `last_events`, or `failure` if the stream ends before.
    """

    @property
    def choices(self) -> Sequence[ChoiceState]:
        """What the engine has sent so far."""
        ...

    def add(self, index: int, delta: Delta) -> None:
        """Adds a delta of choice `index`."""
        ...

    def body(self) -> bytes:
        """The response in one piece, encoded. Raises `RuntimeError` if a choice has not ended."""
        ...

    def events(self, index: int, delta: Delta) -> Sequence[bytes]:
        """The encoded events of a delta of choice `index`."""
        ...

    def last_events(self) -> Sequence[bytes]:
        """The encoded end of a stream. Raises `RuntimeError` if a choice has not finished."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """The encoded end of a stream that fails."""
        ...


class GenerationResponse(Response):
    """The response to a prepared request: one JSON body, or a stream of events.

    Everything happens while it is sent, so that the request is in flight until its last token is
    sent, or until its body is complete: a client that has seen the end is not counted. An
    error before the first byte is an ordinary error response. A client that disconnects aborts
    the generation.
    """

    def __init__(
        self,
        runtime: Runtime,
        prepared: PreparedRequest,
        new_builder: Callable[[AdmittedRequest], Builder] = ResponseBuilder,
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._prepared = prepared
        self._new_builder = new_builder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `ApiError` and `EngineError` before the first byte."""
        exchange, key = exchange_of(scope), key_name(scope)
        with Recording(self._runtime, exchange, self._prepared, key) as recording:
            await self._answer(recording, scope, receive, send)

    async def _answer(
        self, recording: Recording, scope: Scope, receive: Receive, send: Send
    ) -> None:
        runtime = self._runtime
        is_background = exchange_of(scope).is_background
        limit = None if is_background else request_limit(runtime)
        origin = Origin(Headers(scope=scope), key_name(scope), is_background)
        async with AsyncExitStack() as in_flight:
            request = await in_flight.enter_async_context(
                admitted(runtime, receive, self._prepared, origin, limit)
            )
            response_headers = request.headers()
            builder = self._new_builder(request)
            recording.admitted(request, builder.choices)
            if self._prepared.answer.streams:
                events = stream_events(runtime, request, builder, in_flight.aclose)
                stream = EventStream(
                    events,
                    keepalive_s=runtime.settings.keepalive_s,
                    headers=response_headers,
                    on_failure=recording.failing(builder.failure),
                    limit=limit,
                )
                await stream(scope, receive, send)
                return
            body = await until_disconnect(receive, whole_body(runtime, request, builder), limit)
            response_headers |= draft_headers(builder.choices)
        response = Response(body, media_type="application/json", headers=response_headers)
        await response(scope, receive, send)


def request_limit(runtime: Runtime) -> TimeLimit | None:
    """The time by which a request that begins now must have ended."""
    seconds = runtime.settings.request_timeout_s
    return TimeLimit.after(seconds, lambda: runtime.admission.counted(RequestTimeout(seconds)))


def _first_token_limit(runtime: Runtime) -> TimeLimit | None:
    seconds = runtime.settings.first_token_timeout_s
    return TimeLimit.after(seconds, lambda: runtime.admission.counted(FirstTokenTimeout(seconds)))


async def whole_body(runtime: Runtime, request: AdmittedRequest, builder: Builder) -> bytes:
    """Generates, and returns the response in one piece. Cancelling it aborts the generation."""
    async with aclosing(_deltas(runtime, request)) as deltas:
        async for index, delta in deltas:
            builder.add(index, delta)
    return builder.body()


async def stream_events(
    runtime: Runtime,
    request: AdmittedRequest,
    builder: Builder,
    generated: Callable[[], Awaitable[None]],
) -> AsyncGenerator[bytes, None]:
    """Generates, and yields encoded events. Closing it aborts the generation.

    `generated` is called when the engine has finished, before the events that end the stream, or
    when the generation was aborted.
    """
    try:
        async with aclosing(_deltas(runtime, request)) as deltas:
            async for index, delta in deltas:
                for event in builder.events(index, delta):
                    yield event
    finally:
        await generated()
    for event in builder.last_events():
        yield event


def _deltas(runtime: Runtime, request: AdmittedRequest) -> AsyncGenerator[tuple[int, Delta], None]:
    """(Index of the choice, delta) as the engine generates them."""
    streams = [runtime.engine.generate(r) for r in request.engine_requests]
    limit = None if request.ticket.cost.is_background else _first_token_limit(runtime)
    merged = merge(streams, request.ticket, limit)
    if not request.measured:
        return merged
    prompts = [r.prompt_token_ids for r in request.engine_requests]
    return measured(merged, prompts, request.measured)


async def merge(
    streams: Sequence[AsyncGenerator[T, None]], ticket: Ticket, limit: TimeLimit | None = None
) -> AsyncGenerator[tuple[int, T], None]:
    """Yields (index of the stream, item) in order of arrival; closes all streams at its end.

    The first exception of any stream is raised and ends the others. The caller must close this
    generator (`aclosing`), which aborts the streams.

    Args:
        ticket: has started the first stream; each other one is run when its turn comes.
        limit: when the first item must have come.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async with within(limit):
                first_item = await anext(only, None)
            if first_item is not None:
                ticket.prompt_read(0)
                yield 0, first_item
            async for item in only:
                yield 0, item
        return
    arrivals: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue()
    running = asyncio.create_task(_run_all(streams, ticket, arrivals))
    try:
        async with within(limit):
            arrival = await arrivals.get()
        while arrival is not None:
            if isinstance(arrival, BaseException):
                raise arrival
            yield arrival
            arrival = await arrivals.get()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _run_all(
    streams: Sequence[AsyncGenerator[T, None]],
    ticket: Ticket,
    arrivals: asyncio.Queue[tuple[int, T] | BaseException | None],
) -> None:
    """Runs each stream when its turn comes; puts `None` when all have ended."""
    # No `TaskGroup`: Python 3.11's refers to itself once it is cancelled, and keeps all deltas.
    pumps: list[asyncio.Task[None]] = []
    try:
        for index, stream in enumerate(streams):
            if index:
                await ticket.start()
            pumps.append(asyncio.create_task(_pump(index, stream, ticket, arrivals)))
        await asyncio.wait(pumps)
    finally:
        for pump in pumps:
            pump.cancel()
        while not all(pump.done() for pump in pumps):
            # Another cancellation must not cut the closing of the streams short.
            with suppress(asyncio.CancelledError):
                await asyncio.wait(pumps)
        arrivals.put_nowait(None)


async def _pump(
    index: int,
    stream: AsyncGenerator[T, None],
    ticket: Ticket,
    arrivals: asyncio.Queue[tuple[int, T] | BaseException | None],
) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                arrivals.put_nowait((index, item))
                ticket.prompt_read(index)
                break
            async for item in stream:
                arrivals.put_nowait((index, item))
    except (Exception, asyncio.CancelledError) as error:
        if was_cancelled():
            raise
        arrivals.put_nowait(error)
    finally:
        ticket.ended(index)
