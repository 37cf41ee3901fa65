"""Progress lines from the engine's processes to the gateway, through a named pipe.

A line can also be a refusal: why the engine cannot start with a setting. Or it has the exception
with which a start has failed: vLLM tells the gateway only that it has.
"""

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from engine_adapter.seam.errors import EngineConfigError, EngineStartError

_REFUSED, _FAILED = b"refused ", b"failed "
_MAX_REFUSAL, _MAX_BYTES = 1500, 3500
"""Characters of a message, and its bytes in JSON: a line of more than the system's PIPE_BUF (4096)
could be mixed with another."""


class ProgressWriter:
    """Writes lines to the pipe; does nothing without one."""

    def __init__(self, pipe: str | None) -> None:
        self._pipe = pipe

    def write(self, line: str) -> None:
        """Writes one line. Never fails or blocks if the gateway does not read."""
        if self._pipe is None:
            return
        try:
            descriptor = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            with suppress(OSError):
                os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    def refuse(self, setting: str, message: str) -> None:
        """Tells the gateway why the engine cannot start."""
        self.write(_REFUSED.decode() + json.dumps([setting, _cut(message)]))

    def fail(self, error: BaseException) -> None:
        """Tells the gateway the exception with which the start fails; the first one counts."""
        cause = f"{type(error).__name__}: {error}"
        self.write(_FAILED.decode() + json.dumps(_cut(cause)))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Writes a line when the stage begins, and one with its duration when it has succeeded."""
        self.write(name)
        began = time.perf_counter()
        yield
        self.write(f"{name}: {time.perf_counter() - began:.1f} s")


def _cut(message: str) -> str:
    """The beginning of a message, which fits into a line."""
    message = message[:_MAX_REFUSAL]
    while len(json.dumps(message)) > _MAX_BYTES:
        message = message[: len(message) // 2]
    return message


class FailureReports(logging.Handler):
    """Tells the gateway the exceptions that vLLM logs in this process while it starts.

    After the start the pipe is gone, and nothing is written.

    Args:
        progress: to the gateway.
    """

    def __init__(self, progress: ProgressWriter) -> None:
        super().__init__(logging.ERROR)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """Tells the exception of a record that has one."""
        if record.exc_info and record.exc_info[1] is not None:
            self._progress.fail(record.exc_info[1])


def report_failures(pipe: str | None) -> None:
    """From now on the gateway hears why this process fails to start, through the pipe."""
    logging.getLogger("vllm").addHandler(FailureReports(ProgressWriter(pipe)))


@asynccontextmanager
async def progress_pipe(on_line: Callable[[str], None]) -> AsyncIterator[str]:
    """Creates a named pipe and calls `on_line` with every line of progress; yields its path.

    Raises:
        EngineConfigError: the block raised `EngineStartError`, and a refusal has told why.
        EngineStartError: it raised that; the message has the exception of the engine's process, if
            that has told it.
    """
    with tempfile.TemporaryDirectory(prefix="specgate-") as folder:
        path = Path(folder) / "progress"
        os.mkfifo(path, 0o600)
        # Open for writing too, so that it does not end when the first writer closes it.
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        loop = asyncio.get_running_loop()
        pending = b""
        refusals: list[tuple[str, str]] = []
        causes: list[str] = []

        def read() -> None:
            nonlocal pending
            *lines, pending = (pending + os.read(descriptor, 65536)).split(b"\n")
            for line in lines:
                if line.startswith(_REFUSED):
                    refusals.append(json.loads(line.removeprefix(_REFUSED)))
                elif line.startswith(_FAILED):
                    causes.append(json.loads(line.removeprefix(_FAILED)))
                else:
                    on_line(line.decode())

        loop.add_reader(descriptor, read)
        failure: EngineStartError | None = None
        try:
            yield str(path)
        except EngineStartError as error:
            failure = error
        finally:
            loop.remove_reader(descriptor)
            with suppress(BlockingIOError):
                read()
            os.close(descriptor)
        if failure is not None:
            if refusals:
                raise EngineConfigError(*refusals[0]) from failure
            if causes:
                raise EngineStartError(f"vLLM did not start: {causes[0]}") from failure
            raise failure
