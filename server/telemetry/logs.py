"""Destination and format of all log lines: ours, uvicorn's and every library's."""

import io
import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import TextIO

import structlog

OWN_LOGGERS = ("server", "engine_adapter")
"""The root names of our loggers."""

ACCESS_LOGGER = "server.http.middleware"
"""The logger of HTTP requests, at level info."""


def _ignore() -> None:
    """Lines that cannot be written are not counted yet."""


# Tracebacks never show local variables: they hold keys and prompts.
_JSON_TRACEBACK = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


class _StderrHandler(logging.Handler):
    """Writes to the current `sys.stderr`, which the terminal's progress display wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.on_failure: Callable[[], object] = _ignore
        self._failures = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a library's line."""
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
        else:
            self.write(line)

    def write(self, line: str) -> None:
        """Writes a line. The first one after some that could not be written tells of them.

        A line that cannot be written is only counted: another one could not be written either.
        """
        self.acquire()
        try:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # a full disk, or a closed file
            self._failures += 1
            self.on_failure()
            return
        else:
            failures, self._failures = self._failures, 0
        finally:
            self.release()
        if failures:
            structlog.get_logger(__name__).error("log_writes_failed", lines=failures)


class _OwnLogger:
    """Writes the lines of one of our loggers, which has a level of `logging`.

    Not a logger of `logging`: making its records takes as long as formatting and writing a line.
    """

    def __init__(self, handler: _StderrHandler, name: str) -> None:
        self.name = name
        self.disabled = False
        self.getEffectiveLevel = logging.getLogger(name).getEffectiveLevel
        self.debug = self.info = self.warning = self.error = self.exception = handler.write


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
    renderers = _renderers(json=json)
    handler = _StderrHandler()
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *processors, *renderers],
        logger_factory=partial(_OwnLogger, handler),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    drop_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=processors, processors=[drop_meta, *renderers]
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
    return [_escape_values, _console(colors=sys.stderr.isatty())]


def _console(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    """Text lines. Without colors they are the same with plain columns, in half of the time."""
    if colors:
        return structlog.dev.ConsoleRenderer(colors=True, exception_formatter=_escaped_traceback)
    return structlog.dev.ConsoleRenderer(
        columns=[
            structlog.dev.Column("timestamp", _shown_as("{}")),
            structlog.dev.Column("level", _shown_as("[{:<9}]")),
            structlog.dev.Column("event", _shown_as("{:<30}")),
            structlog.dev.Column("logger", _shown_as("[{}]")),
            structlog.dev.Column("", _pair),
        ],
        exception_formatter=_escaped_traceback,
    )


def _shown_as(form: str) -> structlog.dev.ColumnFormatter:
    return lambda key, value: form.format(value)


_QUOTED = frozenset(" \t=\r\n\"'")
"""A text with one of these characters is shown as Python writes it."""


def _pair(key: str, value: object) -> str:
    is_plain = isinstance(value, str) and _QUOTED.isdisjoint(value)
    return f"{key}={value if is_plain else repr(value)}"


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
