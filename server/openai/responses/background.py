"""Responses that run in the background: they are generated without their client's connection.

A run is an ordinary request to the queue, the limits and the metrics. It counts as unfinished for
its API key until it ends. The server's stop ends it as failed.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, aclosing

import structlog
from starlette.types import Message

from server.errors import (
    ApiError,
    ClientDisconnected,
    InvalidField,
    Stopping,
    cancellation_error,
    to_api_error,
)
from server.http.exchange import Exchange
from server.openai.recording import Recording
from server.openai.request import AdmittedRequest, Origin, admitted
from server.openai.respond import request_limit, stream_events, whole_body
from server.openai.responses.builder import ResponsesBuilder
from server.openai.responses.open_items import EventWriter
from server.openai.responses.prepare import PreparedResponse
from server.openai.responses.response_object import (
    ResponseObject,
    failed_object,
    keep,
    response_object,
    stored_response,
)
from server.openai.responses.store import ResponseStore, StoredResponse
from server.state import Runtime
from server.time_limits import within

EVENTS_AT_ONCE = 256
"""The most events that a reader gets in one piece."""

EVENT_OVERHEAD_BYTES = 64
"""Counted for an event beside its text."""

log = structlog.get_logger(__name__)


class BackgroundRun:
    """One response that runs in the background. See `RunningResponse`.

    Attributes:
        accepted: done when the response waits for a slot or has one; an error before is its
            exception.
    """

    def __init__(self, store: ResponseStore, response: PreparedResponse) -> None:
        self.id = response.request.id
        self.owner = response.owner
        self.num_event_bytes = 0
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._store = store
        self._response = response
        self._status = "queued"
        self._builder: ResponsesBuilder | None = None
        self._final: ResponseObject | None = None
        self._snapshot: StoredResponse | None = None
        self._has_ended = False
        streams = response.request.answer.streams
        self._writer = EventWriter(silent=not streams)
        self._events: list[bytes] | None = [] if streams else None
        self._followers: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self, runtime: Runtime, origin: Origin) -> None:
        """Starts it. Raises `Overloaded`."""
        self._store.begin(self)
        for kind in ("response.created", "response.queued"):
            self._writer.write(kind, {"response": self._object()})
        self._append(self._writer.take())
        self._task = asyncio.create_task(self._run(runtime, origin))
        # A task that is cancelled before its first step runs nothing of itself.
        self._task.add_done_callback(lambda task: self._end())

    def snapshot(self) -> StoredResponse:
        """What is known of it now."""
        if self._snapshot is None:  # clients ask for it again and again
            self._snapshot = stored_response(self._response, self._final or self._object())
        return self._snapshot

    def drop_events(self) -> None:
        """Keeps no events from now on."""
        self._events, self.num_event_bytes = None, 0
        self._tell_followers()

    async def follow(self, number: int) -> AsyncGenerator[bytes, None]:
        """Its events from this number on, until it ends. Raises `InvalidField`."""
        news = asyncio.Event()
        self._followers.add(news)
        try:
            while True:
                news.clear()
                if self._events is None:
                    raise not_kept(self.id)
                events = self._events[number : number + EVENTS_AT_ONCE]
                number += len(events)
                if events:
                    yield b"".join(events)
                    await asyncio.sleep(0)  # what has waited for long is not sent in one go
                elif self._has_ended:
                    return
                else:
                    await news.wait()
        finally:
            self._followers.discard(news)

    async def stop(self, reason: ApiError | None) -> StoredResponse:
        """Ends it, as cancelled or as failed for a reason, and returns what became of it."""
        assert self._task is not None
        self._task.cancel(msg=reason or ClientDisconnected())
        await asyncio.wait((self._task,))
        return self.snapshot()

    async def _run(self, runtime: Runtime, origin: Origin) -> None:
        try:
            await self._generate(runtime, origin)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError):
                self._fail(cancellation_error(error), error)
            else:
                self._fail(to_api_error(error), error)

    async def _generate(self, runtime: Runtime, origin: Origin) -> None:
        prepared, limit = self._response.request, request_limit(runtime)
        async with AsyncExitStack() as stack:
            stack.enter_context(runtime.key_limits.unfinished(origin.api_key))
            recording = stack.enter_context(
                Recording(runtime, Exchange(), prepared, origin.api_key)
            )
            await stack.enter_async_context(within(limit))
            in_flight = await stack.enter_async_context(AsyncExitStack())
            request = await in_flight.enter_async_context(
                admitted(runtime, _no_messages, prepared, origin, limit, self._accept)
            )
            builder = self._begin(request)
            recording.admitted(request, builder.choices)
            if not prepared.answer.streams:
                await whole_body(runtime, request, builder)
                return
            events = stream_events(runtime, request, builder, in_flight.aclose)
            async with aclosing(events):
                async for event in events:
                    self._append((event,))

    def _accept(self) -> None:
        if not self.accepted.done():
            self.accepted.set_result(None)

    def _begin(self, request: AdmittedRequest) -> ResponsesBuilder:
        self._accept()
        self._status, self._snapshot = "in_progress", None
        self._writer.write("response.in_progress", {"response": self._object()})
        self._append(self._writer.take())
        self._builder = ResponsesBuilder(self._keep, self._response, request, self._writer)
        return self._builder

    def _keep(self, final: ResponseObject) -> None:
        self._final, self._snapshot = final, None

    def _fail(self, reason: ApiError, error: BaseException) -> None:
        if not self.accepted.done():
            self.accepted.set_exception(reason)
            return
        output = [] if self._builder is None else self._builder.output_so_far()
        if isinstance(reason, ClientDisconnected):
            self._final = response_object(self._response, "cancelled", output)
        else:
            self._final = failed_object(self._response, reason, output)
            unexpected = error if reason.status == 500 else None
            log.error("background_response_failed", code=reason.code, exc_info=unexpected)
        # OpenAI has no event of its own for a response that was cancelled.
        self._writer.write("response.failed", {"response": self._final})
        self._append(self._writer.take())

    def _end(self) -> None:
        """Stores it. One that was refused before it was accepted leaves nothing."""
        self._has_ended = True
        self._store.end(self)
        if not self.accepted.done():
            self.accepted.set_exception(Stopping())
        self._snapshot = None
        if self._final is not None:
            keep(self._store, self._response, self._final, b"".join(self._events or ()))
        self._tell_followers()

    def _object(self) -> ResponseObject:
        return response_object(self._response, self._status, [])

    def _append(self, events: Iterable[bytes]) -> None:
        if self._events is None:
            return
        new = list(events)
        self._events += new
        self._store.grow(self, sum(map(len, new)) + EVENT_OVERHEAD_BYTES * len(new))
        self._tell_followers()

    def _tell_followers(self) -> None:
        for news in self._followers:
            news.set()


async def start_in_background(
    runtime: Runtime, response: PreparedResponse, origin: Origin
) -> BackgroundRun:
    """Starts a response. It waits for a slot or has one when this returns.

    Raises `ApiError` for one that is refused before.
    """
    run = BackgroundRun(runtime.responses, response)
    run.start(runtime, origin)
    await asyncio.shield(run.accepted)
    return run


async def stop_background(store: ResponseStore) -> None:
    """Ends all responses that run in the background, because the server stops."""
    runs = list(store.all_running())
    if runs:
        log.warning("background_responses_stopped", count=len(runs))
        await asyncio.gather(*(run.stop(Stopping()) for run in runs))


def not_kept(response_id: str) -> InvalidField:
    """The error of a response whose events are not kept."""
    message = (
        f"stream: the events of {response_id[:64]!r} are not kept: only those of a response with "
        "background and stream are, as long as the store of responses has room. Read it in one "
        "piece."
    )
    return InvalidField("stream", message, "unsupported_parameter")


async def _no_messages() -> Message:
    """The messages of a client who is not there: none ever comes."""
    message: Message = await asyncio.get_running_loop().create_future()
    return message
