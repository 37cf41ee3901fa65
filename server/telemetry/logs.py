"""Destination and format of all log lines: ours, uvicorn's and every library's."""

import logging
import sys
from typing import TextIO

import structlog

OWN_LOGGERS = ("server", "engine_adapter")
"""The root names of our loggers."""

ACCESS_LOGGER = "server.http.middleware"
"""The logger of HTTP requests, at level info."""


# Tracebacks never show local variables: they hold keys and prompts.
_JSON_TRACEBACK = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which the terminal's progress display wraps."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error."""
        return sys.stderr


def configure_logs(level: str, *, json: bool, access: bool) -> None:
    """Sends every log line to standard error, as JSON or as text.

    `level` applies to our own lines; a library's appear from `warning` on, or from `level` if that
    is higher. `access` enables the log of HTTP requests.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
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
            foreign_pre_chain=shared, processors=[drop_meta, *_renderers(json=json)]
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
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]
