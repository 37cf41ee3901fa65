"""From a prepared request to the bytes of its response: admit, generate, shape, send."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Protocol, TypeVar

from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from engine_adapter.cancellation import was_cancelled
from engine_adapter.interface import Engine
from engine_adapter.types import Delta
from server.errors import ApiError
from server.http.auth import key_name
from server.http.event_stream import EventStream, until_disconnect
from server.http.exchange import exchange_of
from server.openai.answer_overlap import measured
from server.openai.choices import ChoiceState
from server.openai.recording import Recording
from server.openai.request import AdmittedRequest, Origin, PreparedRequest, admitted
from server.openai.response import ResponseBuilder
from server.state import Runtime

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

    def body(self) -> dict[str, Any]:
        """The response in one piece. Raises `RuntimeError` if a choice has not finished."""
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
        engine = self._runtime.engine
        origin = Origin(Headers(scope=scope), key_name(scope))
        async with AsyncExitStack() as in_flight:
            request = await in_flight.enter_async_context(
                admitted(self._runtime, receive, self._prepared, origin)
            )
            response_headers = request.headers()
            builder = self._new_builder(request)
            recording.admitted(request, builder.choices)
            if self._prepared.body.stream:
                keepalive_s = self._runtime.settings.keepalive_s
                events = stream_events(engine, request, builder, in_flight.aclose)
                stream = EventStream(
                    events,
                    keepalive_s=keepalive_s,
                    headers=response_headers,
                    on_failure=recording.failing(builder.failure),
                )
                await stream(scope, receive, send)
                return
            body = await until_disconnect(receive, whole_body(engine, request, builder))
        await JSONResponse(body, headers=response_headers)(scope, receive, send)


async def whole_body(engine: Engine, request: AdmittedRequest, builder: Builder) -> dict[str, Any]:
    """Generates, and returns the response in one piece. Cancelling it aborts the generation."""
    async with aclosing(_deltas(engine, request)) as deltas:
        async for index, delta in deltas:
            builder.add(index, delta)
    return builder.body()


async def stream_events(
    engine: Engine,
    request: AdmittedRequest,
    builder: Builder,
    generated: Callable[[], Awaitable[None]],
) -> AsyncGenerator[bytes, None]:
    """Generates, and yields encoded events. Closing it aborts the generation.

    `generated` is called when the engine has finished, before the events that end the stream.
    """
    async with aclosing(_deltas(engine, request)) as deltas:
        async for index, delta in deltas:
            for event in builder.events(index, delta):
                yield event
    await generated()
    for event in builder.last_events():
        yield event


def _deltas(engine: Engine, request: AdmittedRequest) -> AsyncGenerator[tuple[int, Delta], None]:
    """(Index of the choice, delta) as the engine generates them."""
    merged = merge([engine.generate(r) for r in request.engine_requests])
    if not request.measured:
        return merged
    prompts = [r.prompt_token_ids for r in request.engine_requests]
    return measured(merged, prompts, request.measured)


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yields (index of the stream, item) in order of arrival; closes all streams at its end.

    The first exception of any stream is raised and ends the others. The caller must close this
    generator (`aclosing`), which aborts the streams.
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
    except (Exception, asyncio.CancelledError) as error:
        if was_cancelled():
            raise
        arrivals.put_nowait(error)
    else:
        arrivals.put_nowait(None)
