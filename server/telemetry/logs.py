"""Destination and format of all log lines: ours, uvicorn's and every library's."""

import io
import logging
import sys
from collections.abc import Callable
from typing import TextIO

import structlog

OWN_LOGGERS = ("server", "engine_adapter")
"""The root names of our loggers."""

ACCESS_LOGGER = "server.http.middleware"
"""The logger of HTTP requests, at level info."""


log = structlog.get_logger("server.telemetry.logs")


def _ignore() -> None:
    """Lines that cannot be written are not counted yet."""


# Tracebacks never show local variables: they hold keys and prompts.
_JSON_TRACEBACK = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which the terminal's progress display wraps."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.on_failure: Callable[[], object] = _ignore
        self._failures = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line. The first one after some that could not be written tells of them."""
        failures = self._failures
        super().emit(record)
        if failures and failures == self._failures:
            self._failures = 0
            log.error("log_writes_failed", lines=failures)

    def handleError(self, record: logging.LogRecord) -> None:
        """Counts a line that cannot be written: there is no place to say so."""
        if isinstance(sys.exception(), OSError):
            self._failures += 1
            self.on_failure()
        else:
            super().handleError(record)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error."""
        return sys.stderr


def count_failures(count: Callable[[], object]) -> None:
    """Calls `count` for each line that cannot be written, from now on."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _StderrHandler):
            handler.on_failure = count


def configure_logs(level: str, *, json: bool, access: bool) -> None:
    """Sends every log line to standard error, as JSON or as text.

    `level` applies to our own lines; a library's appear from `warning` on, or from `level` if that
    is higher. `access` enables the log of HTTP requests.
    """
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *processors,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    drop_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler = _StderrHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=processors, processors=[drop_meta, *_renderers(json=json)]
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger(ACCESS_LOGGER).setLevel(logging.NOTSET if access else logging.WARNING)


def _renderers(*, json: bool) -> list[structlog.typing.Processor]:
    if json:
        return [
            structlog.processors.ExceptionRenderer(_JSON_TRACEBACK),
            structlog.processors.JSONRenderer(),
        ]
    return [
        _escape_values,
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=_escaped_traceback
        ),
    ]


def _escape_values(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escapes the texts of a line. The renderer quotes only those with a space or a quote."""
    values = {n: _escaped_line(v) if isinstance(v, str) else v for n, v in event.items()}
    return values | {"event": _escaped(str(event.get("event")))}


def _escaped_traceback(target: TextIO, error: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    target.write(_escaped(text.getvalue()))


def _escaped(text: str) -> str:
    """The text without control characters; a further line begins with spaces.

    A client's text may be in it. It must neither look like a line of ours nor steer a terminal.
    """
    return "\n    ".join(map(_escaped_line, text.split("\n")))


def _escaped_line(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
