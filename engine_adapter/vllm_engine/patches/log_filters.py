"""Filters on vLLM's loggers, for lines that are wrong in a Specgate engine."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from engine_adapter.vllm_engine import compat

_GRAMMAR_LINES = (
    "Unexpected: grammar rejected tokens",
    "Unexpected: grammar terminated or rejected draft",
    "Failed to compile grammar",
)


def silence_engine_death() -> None:
    """Drops the traceback that vLLM logs in the gateway's process when its engine dies.

    The traceback names lines that a killed process never wrote. The supervisor logs the cause.
    """
    _add_once(compat.AsyncLLM.__module__, _EngineDeath())


def silence_rejected_tokens() -> None:
    """Drops vLLM's lines on a grammar that ends its request, which repeat tokens of its text.

    The client gets the reason: see `core.constrained`.
    """
    for module in (compat.Scheduler.__module__, compat.StructuredOutputManager.__module__):
        _add_once(module, _RejectedTokens())


_taken_errors: ContextVar[list[str] | None] = ContextVar("taken_errors", default=None)


def silence_parser_lines() -> None:
    """Lets `taken_parser_errors` take the lines of vLLM's parsers out of the log."""
    managers = (compat.ParserManager, compat.ReasoningParserManager, compat.ToolParserManager)
    for manager in managers:
        logger = logging.getLogger(manager.__module__.rpartition(".")[0])
        if not any(isinstance(present, _ParserLines) for present in logger.handlers):
            logger.addHandler(_ParserLines())
            logger.propagate = False
    # Python's own parser warns of escapes in the text that a parser gives it.
    warnings.filterwarnings("ignore", module="<unknown>")


@contextmanager
def taken_parser_errors() -> Iterator[list[str]]:
    """Drops what vLLM's parsers log meanwhile, because it can hold texts of models and clients.

    Yields the errors among it: the class of an exception, or `error`.
    """
    errors: list[str] = []
    token = _taken_errors.set(errors)
    try:
        yield errors
    finally:
        _taken_errors.reset(token)


class _ParserLines(logging.Handler):
    """Notes the errors in the lines that are taken; all others are written as without it."""

    def createLock(self) -> None:
        """Makes none: the end of a call, which a signal raises, could leave it taken."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        errors = _taken_errors.get()
        if errors is None:
            logging.getLogger("vllm").handle(record)
        elif record.exc_info and record.exc_info[0] is not None:
            errors.append(record.exc_info[0].__name__)
        elif record.levelno >= logging.ERROR:
            errors.append("error")


def _add_once(logger_name: str, silence: logging.Filter) -> None:
    logger = logging.getLogger(logger_name)
    if not any(isinstance(present, type(silence)) for present in logger.filters):
        logger.addFilter(silence)


class _RejectedTokens(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_GRAMMAR_LINES)


class _EngineDeath(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], compat.EngineDeadError))
