"""Server-sent events: framing, keep-alive, errors after the first event, and disconnects.

A stream's status is sent with its first event, so that an earlier failure is an ordinary error
response. If no event comes for `keepalive_s` seconds, the status and comments are sent, because
proxies close silent connections; 0 sends no comments.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from json.encoder import encode_basestring
from typing import Any, TypeVar

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine_adapter.seam.cancellation import was_cancelled
from server.errors import (
    ApiError,
    ClientDisconnected,
    cancellation_error,
    error_body,
    to_api_error,
)
from server.time_limits import TimeLimit

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
"""The event that ends every stream."""

TEXT_PLACEHOLDER = "\x00text\x00"
"""The text of an event that is encoded in advance; JSON never holds this text unescaped."""

DIRECT_SEND = "specgate.direct_send"
"""The key of a request's scope that has the server's own `send`, without the middleware's."""

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients ignore."""

_SURROGATE = re.compile("[\ud800-\udfff]")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

log = structlog.get_logger(__name__)


def json_text(value: Any) -> str:
    """Compact JSON on one line, even for clients that split lines as `str.splitlines` does."""
    text = _encode(value)
    return text if text.isascii() else _one_line(text)


def json_string(value: str) -> bytes:
    """`json_text` of a string, encoded: the part of an event that differs from the one before."""
    text = encode_basestring(value)
    return (text if text.isascii() else _one_line(text)).encode()


def _one_line(text: str) -> str:
    for character in "\x85\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # A model may write half of a pair as an escape, which UTF-8 cannot encode.
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def event(value: Any) -> bytes:
    """A data event with `value` as JSON."""
    return f"data: {json_text(value)}\n\n".encode()


def error_events(error: ApiError) -> bytes:
    """The end of a stream that fails, as completions and chats have it."""
    return event(error_body(error)) + DONE


async def until_disconnect(
    receive: Receive, work: Coroutine[Any, Any, T], limit: TimeLimit | None = None
) -> T:
    """Runs `work`, and cancels it as soon as the client disconnects, or at the limit.

    `receive` must be past the request's body. Raises `ClientDisconnected`, the limit's error, and
    `RuntimeError` if `work` was cancelled from elsewhere.
    """
    work_task = asyncio.ensure_future(work)
    watch_task = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait(
            (work_task, watch_task),
            timeout=None if limit is None else limit.left_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not work_task.done():
            raise ClientDisconnected if limit is None or watch_task.done() else limit.error()
        if work_task.cancelled():
            raise RuntimeError("the work was cancelled from within")
        return work_task.result()
    finally:
        work_task.cancel()
        watch_task.cancel()
        await asyncio.gather(work_task, watch_task, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends the encoded events of an async generator, and always closes it.

    Its events go past the middleware, which reads only the start and the end of an answer.
    `on_failure` encodes the events that end a stream which fails after its first event; `limit`
    is the time by which it has ended.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        keepalive_s: float,
        headers: Mapping[str, str] | None = None,
        on_failure: Callable[[ApiError], bytes] = error_events,
        limit: TimeLimit | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", **(headers or {})})
        # Response has set the length of an empty body.
        del self.headers["content-length"]
        self._events = events
        self._keepalive_s = keepalive_s
        self._on_failure = on_failure
        self._limit = limit
        self._started = False
        self._has_sent_start = self._has_sent_end = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises what the generator raises before its first event."""
        self._send = send
        self._send_event: Send = scope.get(DIRECT_SEND, send)
        self._starting = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._last_write_s = self._loop.time()
        async with aclosing(self._events):
            try:
                await until_disconnect(receive, self._run(), self._limit)
            except ClientDisconnected:
                if not self._started:
                    raise
                log.info("stream_disconnected")
            except (asyncio.CancelledError, ApiError) as error:
                # The request's time is over, the server stops, or a drain has waited long enough.
                if not self._started:
                    raise
                if self._has_sent_end:  # it was whole when the reason to end it came
                    return
                # Before the last event, for which an absent reader can make it wait.
                await self._events.aclose()
                reason = error if isinstance(error, ApiError) else cancellation_error(error)
                log.error("stream_failed", code=reason.code)
                await self._write(self._on_failure(reason))
                await self._end()

    async def _run(self) -> None:
        keep_alive_task = asyncio.ensure_future(self._keep_alive())
        try:
            await self._pump()
        finally:
            keep_alive_task.cancel()
            await asyncio.gather(keep_alive_task, return_exceptions=True)
        await self._end()

    async def _pump(self) -> None:
        while True:
            try:
                data = await anext(self._events)
            except StopAsyncIteration:
                return
            except (Exception, asyncio.CancelledError) as error:
                if not self._started or was_cancelled():
                    raise
                api_error = to_api_error(error)
                unexpected = error if api_error.status == 500 else None
                log.error("stream_failed", code=api_error.code, exc_info=unexpected)
                await self._write(self._on_failure(api_error))
                return
            await self._write(data)

    async def _keep_alive(self) -> None:
        while self._keepalive_s:
            silent_s = self._loop.time() - self._last_write_s
            if silent_s < self._keepalive_s:
                await asyncio.sleep(self._keepalive_s - silent_s)
            else:
                await self._write(KEEP_ALIVE)

    async def _write(self, data: bytes) -> None:
        if not self._has_sent_start:
            await self._start()
        await self._send_event({"type": "http.response.body", "body": data, "more_body": True})
        self._last_write_s = self._loop.time()

    async def _start(self) -> None:
        """Sends the status. The first event and a comment may both want to; the second waits."""
        async with self._starting:
            if not self._has_sent_start:
                self._started = True
                await self._send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                self._has_sent_start = True

    async def _end(self) -> None:
        if not self._has_sent_start:  # there was no event
            await self._start()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self._has_sent_end = True
