"""Where log lines go and what they look like: ours, uvicorn's and every library's alike."""

import logging
import sys
from typing import TextIO

import structlog

OWN_LOGGERS = ("server", "engine_adapter")
"""The roots of our loggers' names."""

ACCESS_LOGGER = "server.http.middleware"
"""Who logs each HTTP request, at level info."""


# Tracebacks never show local variables: they hold keys and prompts.
_JSON_TRACEBACK = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the time: the terminal's progress display wraps it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error."""
        return sys.stderr


def configure_logs(level: str, *, json: bool, access: bool) -> None:
    """Sends every log line to standard error, as JSON or for people.

    Our own lines count from `level` on, a library's from `warning` on at most. `access` tells
    whether HTTP requests are logged.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[structlog.typing.Processor] = (
        [
            structlog.processors.ExceptionRenderer(_JSON_TRACEBACK),
            structlog.processors.JSONRenderer(),
        ]
        if json
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )
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
    handler = _StderrHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger(ACCESS_LOGGER).setLevel(logging.NOTSET if access else logging.WARNING)
