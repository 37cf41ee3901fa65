"""One connection: uvicorn's protocol with limits of what a client sends, and leaves unread.

uvicorn reads a head of any size, waits without end, and lets an answer wait for its reader. Here
a head has limits, each wait for the client has a deadline, and a stream does not wait for its
reader: what the client leaves unread is buffered up to a limit, above which the stream is aborted.
So the engine's output is never held up, and a stream without a reader ends with its generation.
"""

import asyncio
from collections.abc import MutableMapping
from enum import Enum
from http import HTTPStatus
from typing import Any, cast

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from server.errors import ApiError, Unavailable, error_body, error_response
from server.http.connections import Connections, Entry, Handshaking
from server.http.event_stream import json_text
from server.http.middleware import shown_path
from server.telemetry.connection_metrics import CloseReason
from server.telemetry.http_metrics import PROBES

MAX_PIPELINED = 16
"""The most requests that a client may send ahead of its answers."""

SPARE_TIMEOUT_S = 5.0
"""Seconds in which a connection above the limit must have sent its headers."""


class Reading(Enum):
    """What the client is to send next."""

    REQUEST = "request"
    HEAD = "head"
    BODY = "body"


class _Refused(Exception):
    """Ends the parsing of a request that is refused."""


class _CountedWrites(asyncio.Transport):
    """A transport of answers that counts their bytes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self.num_written = 0
        self._write = transport.write
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.close = transport.close  # type: ignore[method-assign]

    def write(self, data: Any) -> None:
        self.num_written += len(data)
        self._write(data)


class Connection(HttpToolsProtocol):
    """A connection of a client.

    Args:
        handshake: what has had its place until it spoke TLS; `None` for one that does not.
        arguments: uvicorn's.
    """

    def __init__(
        self, connections: Connections, handshake: Handshaking | None = None, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._connections = connections
        self._handshake = handshake
        self._limits = connections.settings
        self._entry = Entry.OPEN
        self._reading = Reading.REQUEST
        self._since_s = self.loop.time()
        self._head_bytes = 0
        # Bytes that arrived since the parser last finished a head or passed on a part of a body.
        self._unparsed = 0
        self._refusal: ApiError | None = None
        self._running: RequestResponseCycle | None = None
        self._last_num_sent = 0
        self._last_sent_at_s = self._since_s

    # What the transport calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Asks for a place; a connection without one is closed, or kept for a refusal."""
        super().connection_made(transport)
        # A TLS handshake came before, and has a deadline of its own.
        self._since_s = self._last_sent_at_s = self.loop.time()
        transport.set_write_buffer_limits(high=self._limits.max_unsent_bytes)
        self._answers = _CountedWrites(transport)
        self._entry = self._connections.opened(self, self.loop, self._handshake)
        if self._entry is Entry.NONE:
            self._note(CloseReason.REFUSED)
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives the place back; the request that runs learns that its client is gone."""
        self._connections.lost(self)
        self._leave()
        super().connection_lost(exc)
        # They refer back to it: so all are freed at once, not by the collector.
        self.cycle = self._running = None  # type: ignore[assignment]
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """Parses what has arrived.

        Not uvicorn's, which writes a line to the log for each connection that sends what is not
        HTTP, and for each request that wants to speak another protocol.
        """
        self._unparsed += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade:
            pass  # No other protocol is spoken here.
        except HttpParserError:
            self.send_400_response("")
        if self._unparsed > self._limits.max_header_bytes and not self.transport.is_closing():
            self._refuse(self._large_headers())

    def pause_writing(self) -> None:
        """The client leaves too much unread: a stream is aborted, and a whole answer waits."""
        cycle = self._running
        if cycle is not None and cycle.chunked_encoding and not cycle.response_complete:
            # What the stream still writes before the transport is gone is dropped.
            self._leave()
            self._abort_unread(CloseReason.UNSENT)
        else:
            super().pause_writing()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._reading, self._since_s = Reading.HEAD, self.loop.time()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Adds a part of the URL; one that is too long is refused."""
        super().on_url(url)
        if len(self.url) > self._limits.max_url_bytes:
            message = f"The URL is longer than {self._limits.max_url_bytes} bytes."
            self._end_parsing(ApiError(414, message, code="url_too_long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, before a body or after it."""
        self._head_bytes += len(name) + len(value)
        if (
            self._head_bytes > self._limits.max_header_bytes
            or len(self.headers) >= self._limits.max_headers
        ):
            self._end_parsing(self._large_headers())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A request begins after `super()`, which raises if its URL cannot be parsed."""
        self._unparsed = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            message = f"More than {MAX_PIPELINED} requests were sent ahead of their answers."
            self._end_parsing(ApiError(400, message, code="invalid_http"))
        super().on_headers_complete()
        self._reading, self._since_s = Reading.BODY, self.loop.time()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has arrived in full."""
        self._reading, self._since_s = Reading.REQUEST, self.loop.time()
        self._unparsed = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers what cannot be parsed, or what a limit refuses."""
        message = "The request is not valid HTTP."
        self._refuse(self._refusal or ApiError(400, message, code="invalid_http"))

    # What a request's life calls.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self.flow.write_paused:
            # It sends requests and does not read the answers.
            self._abort_unread(CloseReason.UNSENT)
            return
        self._running = cycle
        cycle.transport = self._answers
        if self._is_spare():
            cycle.keep_alive = False
            if cycle.scope["path"] not in PROBES:
                self._note(CloseReason.REFUSED)
                app = error_response(_too_many())  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """The next request of the client is waited for."""
        self._since_s = self.loop.time()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """No other request came."""
        if not self.transport.is_closing():
            self._close(CloseReason.IDLE)

    # What the once-a-second look calls.

    def check(self, now_s: float) -> int:
        """See `Watched.check`."""
        num_sent = self._num_sent()
        num_unsent = self._answers.num_written - num_sent
        is_closing = self.transport.is_closing()
        if num_sent != self._last_num_sent or not (num_unsent or is_closing):
            self._last_num_sent, self._last_sent_at_s = num_sent, now_s
        elif now_s - self._last_sent_at_s >= self._limits.write_timeout_s:
            if num_unsent:
                self._abort_unread(CloseReason.NOT_READ)
            else:
                # It was closed, and the client's end of TLS does not come.
                self.transport.abort()
            return 0
        if not self._is_answering and not is_closing:
            self._check_reading(now_s - self._since_s)
        return num_unsent

    def _num_sent(self) -> int:
        """The bytes of answers that are sent."""
        num_written = self._answers.num_written
        if self._handshake is not None and self._last_num_sent < num_written:
            # A transport of TLS does not say what the one below it buffers. What is encrypted is
            # a little more than what was written.
            num_acknowledged = self._handshake.acknowledged()
            if num_acknowledged is not None:
                return min(num_acknowledged, num_written)
        return num_written - self.transport.get_write_buffer_size()

    def end_unread(self) -> None:
        """See `Watched.end_unread`."""
        self._abort_unread(CloseReason.ALL_UNSENT)

    def give_way(self) -> bool:
        """See `Pending.give_way`."""
        if self._is_answering:
            return False
        if not self.transport.is_closing():
            self._note(CloseReason.REFUSED)
        self.transport.abort()
        return True

    @property
    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _check_reading(self, waited_s: float) -> None:
        limits = self._limits
        if self._is_spare() and waited_s >= SPARE_TIMEOUT_S:
            self._close(CloseReason.REFUSED)
        elif self._reading is Reading.REQUEST and waited_s >= limits.idle_timeout_s:
            self._close(CloseReason.IDLE)
        elif self._reading is Reading.HEAD and waited_s >= limits.header_timeout_s:
            message = f"The headers did not arrive within {limits.header_timeout_s:g} s."
            self._close(CloseReason.SLOW_HEADERS, ApiError(408, message, code="slow_client"))
        elif self._reading is Reading.BODY and waited_s >= limits.body_timeout_s:
            self._close(CloseReason.SLOW_BODY)

    def _is_spare(self) -> bool:
        """Whether it is above the limit. It gets a place for good once there is one."""
        if self._entry is Entry.SPARE and self._connections.give_place(self):
            self._entry = Entry.OPEN
        return self._entry is Entry.SPARE

    # How it ends.

    def _leave(self) -> None:
        """Tells the request that runs that its client is gone.

        uvicorn tells only the last one that has arrived, which may wait for this one.
        """
        cycle = self._running
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _end_parsing(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise _Refused

    def _refuse(self, error: ApiError) -> None:
        too_large = error.status in (HTTPStatus.REQUEST_URI_TOO_LONG, 431)
        self._close(CloseReason.TOO_LARGE if too_large else CloseReason.BAD_REQUEST, error)

    def _close(self, reason: CloseReason, error: ApiError | None = None) -> None:
        """Closes, after what is buffered and an error are sent.

        The error is not sent into another answer, nor as a second answer to a request.
        """
        self._note(reason)
        if error is not None and not self._is_answering and self._reading is not Reading.BODY:
            self._answers.write(_raw_response(error, self.server_state.default_headers))
        self.transport.close()

    def _abort_unread(self, reason: CloseReason) -> None:
        scope = cast(MutableMapping[str, Any], self._running.scope) if self._running else None
        path = shown_path(scope) if scope is not None else ""
        self._note(reason, path=path, unsent_bytes=self.transport.get_write_buffer_size())
        self.transport.abort()

    def _note(self, reason: CloseReason, **fields: object) -> None:
        peer = self.client[0] if self.client else ""
        self._connections.closing(reason, peer, self.loop.time(), **fields)

    def _large_headers(self) -> ApiError:
        limits = self._limits
        message = (
            f"A request can have at most {limits.max_headers} headers, of "
            f"{limits.max_header_bytes} bytes together."
        )
        return ApiError(431, message, code="headers_too_large")


def _too_many() -> Unavailable:
    error = Unavailable(
        "This server has as many connections open as it allows; try again soon.",
        "too_many_connections",
        SPARE_TIMEOUT_S,
    )
    error.headers = {**error.headers, "Connection": "close"}
    return error


def _raw_response(error: ApiError, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The whole response to a request that never reaches the application."""
    body = json_text(error_body(error)).encode()
    lines = [
        *(name + b": " + value for name, value in headers),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
    ]
    return STATUS_LINE[error.status] + b"\r\n".join(lines) + b"\r\n\r\n" + body
