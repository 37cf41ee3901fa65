"""Sends the spans of requests by OTLP over HTTP.

Only this file and `server.telemetry.spans` import OpenTelemetry, and they are imported only if
traces are on. A thread of the SDK sends spans that have ended, in batches. Its queue is bounded: an
endpoint that is slow or gone costs spans, never a request. The SDK reads its standard variables
itself, but for the endpoint: sampler, service name, headers, time limits, sizes.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from starlette.types import Scope

from engine_adapter.seam.text import truncate
from server import __version__
from server.telemetry.spans import ServerSpan

CLOSE_TIMEOUT_S = 2.0
"""How long a stop waits for the last spans to be sent, in seconds."""

GIVE_UP_S = 0.5
"""How long it then waits for an exporter that was told to give up, in seconds."""

REPORT_INTERVAL_S = 300.0
"""At most one line of log about failed exports in so many seconds."""

FLUSH_THREAD = "traces-flush"
"""The name of the thread that sends the last spans."""

MAX_EXPORT_REASON = 400
"""The most characters of such a reason: the cause is at the end of the exporter's message."""

_LOGGER = logging.getLogger("opentelemetry")
_EXPORT_LOGGERS = ("opentelemetry.sdk.", "opentelemetry.exporter.")

log = structlog.get_logger(__name__)


class Tracing:
    """Makes the spans of requests, and sends them to `endpoint`."""

    def __init__(self, endpoint: str) -> None:
        self._reports = ExportReports()
        _LOGGER.addHandler(self._reports)
        _LOGGER.propagate = False
        resource = Resource({"service.name": "specgate", "service.version": __version__})
        self._provider = TracerProvider(
            # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
            resource=Resource.create().merge(resource).merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        self._exporter = OTLPSpanExporter(endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("specgate", __version__)

    def begin(self, scope: Scope, start_s: float, request_id: str) -> ServerSpan:
        """Begins the span of a request, which arrived at `start_s` by `time.perf_counter`."""
        return ServerSpan(self._tracer, scope, start_s, request_id)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Sends the last spans; gives up after `timeout_s` seconds."""
        # A daemon, because the exporter can wait longer for its endpoint than a stop may take.
        flush = threading.Thread(target=self._provider.shutdown, name=FLUSH_THREAD, daemon=True)
        flush.start()
        await asyncio.to_thread(flush.join, timeout_s)
        if flush.is_alive():
            self._reports.report(f"the last spans could not be sent within {timeout_s:g} s")
            # It stops trying; what its thread still logs stays out of the log.
            await asyncio.to_thread(self._exporter.shutdown)
            await asyncio.to_thread(flush.join, GIVE_UP_S)
        else:
            _LOGGER.removeHandler(self._reports)
            _LOGGER.propagate = True


class ExportReports(logging.Handler):
    """Turns what the SDK logs about failed exports into one line in `REPORT_INTERVAL_S` seconds.

    The SDK logs each attempt, and each span that it drops. What it logs of a client's headers is
    left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._deciding = threading.Lock()
        self._next_at = -float("inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Logs the first message of an interval."""
        if record.name.startswith(_EXPORT_LOGGERS):
            self.report(record.getMessage())

    def report(self, reason: str) -> None:
        """Logs why spans are not sent, unless that was logged lately."""
        with self._deciding:
            if self._clock() < self._next_at:
                return
            self._next_at = self._clock() + REPORT_INTERVAL_S
        log.warning("traces_not_sent", reason=truncate(reason, MAX_EXPORT_REASON))
