"""Middleware: the span of each request that generates or changes something."""

from typing import TYPE_CHECKING

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.auth import ADMIN_PATHS
from server.http.exchange import exchange_of
from server.telemetry.http_metrics import GENERATING

if TYPE_CHECKING:
    from server.telemetry.tracing import Tracing

_PATHS = ADMIN_PATHS | frozenset(GENERATING)
_READING = ("GET", "HEAD", "OPTIONS")
_REFUSED = (401, 403)


def is_traced(method: str, path: str) -> bool:
    """Whether such requests have a span: those that generate or change something."""
    return path in _PATHS and method not in _READING


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
