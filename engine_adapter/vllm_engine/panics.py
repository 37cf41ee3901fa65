"""Panics of libraries that are written in Rust, as errors of the request that caused them.

PyO3 derives them from `BaseException` alone, so nothing that handles the errors of a request
catches them: one that reaches EngineCore's loop ends it, and with it the requests of all clients.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class CompilerPanic(ValueError):
    """What compiles a constraint has panicked."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raises `CompilerPanic` in place of a panic of the code within."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        # Every extension module has a class of its own, which cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise CompilerPanic(str(error)) from None
