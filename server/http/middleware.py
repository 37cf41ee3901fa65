"""Middleware of every request: request id, span, access log, HTTP metrics, unexpected errors.

Pure ASGI: what wraps `send` reads only the start and the end of an answer. `EventStream` sends
what is between past the middleware.
"""

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine_adapter.seam.cancellation import was_cancelled
from server.console.pages import is_console_path
from server.errors import MESSAGES_PATH, cancellation_error, send_error, to_api_error
from server.http.auth import ADMIN_PATHS, key_name
from server.http.exchange import exchange_of
from server.http.headers import ANTHROPIC_REQUEST_ID, REQUEST_ID, TRACE_ID
from server.telemetry.http_metrics import GENERATING, PROBES, UNMATCHED
from server.telemetry.metrics import Metrics
from server.telemetry.repeated_warning import LOG_EVERY_S

if TYPE_CHECKING:
    from server.telemetry.tracing import Tracing

OTHER_METHOD = "other"
"""The method label of methods that HTTP does not define, so that labels are bounded."""

MAX_REFUSALS = 100
"""Lines of requests without a valid key in `LOG_EVERY_S` seconds."""

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_READING = ("GET", "HEAD", "OPTIONS")
_TRACED_PATHS = ADMIN_PATHS | frozenset(GENERATING)
_REFUSED = (401, 403)

log = structlog.get_logger(__name__)


class RequestId:
    """Gives every response `x-request-id`: the client's own if it is sane, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = client_id if _SANE_ID.fullmatch(client_id) else uuid.uuid4().hex
        exchange_of(scope).request_id = request_id

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                if scope["path"].startswith(MESSAGES_PATH):
                    headers[ANTHROPIC_REQUEST_ID] = request_id
                if (span := exchange_of(scope).span) is not None:
                    headers[TRACE_ID] = span.trace_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._app(scope, receive, with_id)


def is_traced(method: str, path: str) -> bool:
    """Whether such requests have a span: those that generate or change something."""
    return path in _TRACED_PATHS and method not in _READING


class TraceRequests:
    """Gives a request its span, and each log line of it the id of the trace.

    A request without a valid key is not sent to the collector: otherwise anybody could fill it.
    """

    def __init__(self, app: ASGIApp, tracer: "Tracing") -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes every request on."""
        if scope["type"] != "http" or not is_traced(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        request_id = structlog.contextvars.get_contextvars().get("request_id", "")
        span = self._tracer.begin(scope, exchange.start_s, request_id)
        if not span.is_valid:
            await self._app(scope, receive, send)
            return
        exchange.span = span
        try:
            with structlog.contextvars.bound_contextvars(trace_id=span.trace_id):
                await self._app(scope, receive, send)
        finally:
            if exchange.status not in _REFUSED:
                span.end(exchange.status, exchange.error)


class _Refusals:
    """How many lines the log has of requests without a valid key, which anybody can send."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_at = float("-inf")
        self._lines_left = 0
        self._not_logged = 0

    def line(self) -> dict[str, int] | None:
        """The fields of the next line: those that were left out before it; `None`: no line."""
        now_s = self._clock()
        if now_s >= self._ends_at:
            self._ends_at, self._lines_left = now_s + LOG_EVERY_S, MAX_REFUSALS
        if not self._lines_left:
            self._not_logged += 1
            return None
        self._lines_left -= 1
        num_skipped, self._not_logged = self._not_logged, 0
        return {"not_logged": num_skipped} if num_skipped else {}


class AccessLog:
    """One log line and one count per request, after its last byte.

    Of requests without a valid key there are at most `MAX_REFUSALS` lines in `LOG_EVERY_S`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._refusals = _Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = exchange_of(scope)

        async def with_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, with_status)
        finally:
            seconds = time.perf_counter() - exchange.start_s
            route = route_template(scope)
            method = scope["method"] if scope["method"] in _METHODS else OTHER_METHOD
            self._metrics.http.observe(route, method, exchange.status, seconds)
            refusal = self._refusals.line() if exchange.status == 401 else {}
            if refusal is not None:
                # Anybody can ask for open paths, as often as they like.
                write = log.debug if route in PROBES or is_console_path(route) else log.info
                write(
                    "request",
                    peer=scope["client"][0] if scope["client"] else None,
                    method=method,
                    path=shown_path(scope),
                    route=route,
                    status=exchange.status,
                    duration_ms=round(seconds * 1e3, 2),
                    **({"key": key} if (key := key_name(scope)) else {}),
                    **refusal,
                )


def route_template(scope: Scope) -> str:
    """The path template of the request's route, even if it was refused before routing."""
    route = scope.get("route")
    if route is None:
        routes = scope["app"].routes
        route = next((r for r in routes if r.matches(scope)[0] is not Match.NONE), None)
    return str(getattr(route, "path", UNMATCHED))


def shown_path(scope: Scope) -> str:
    """The path as it was sent, still percent-encoded: a log line cannot be forged with it."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("ascii", "backslashreplace")
    return raw[:200].decode("ascii", "backslashreplace")


class ErrorBoundary:
    """Turns unexpected exceptions into a 500 in OpenAI's format, and logs them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def watched(message: Message) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and was_cancelled():
                # The server stops, or a drain has waited long enough.
                if has_started:
                    raise
                await send_error(cancellation_error(error), scope, receive, send)
                return
            log.error("unhandled_exception", path=shown_path(scope), exc_info=error)
            if has_started:
                # The server closes the connection, so that the client sees a broken response.
                raise
            await send_error(to_api_error(error), scope, receive, send)
