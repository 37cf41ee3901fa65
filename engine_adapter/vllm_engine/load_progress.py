"""Progress lines from the engine's processes to the gateway, through a named pipe."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path


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

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Writes a line when the stage begins, and one with its duration when it has succeeded."""
        self.write(name)
        began = time.perf_counter()
        yield
        self.write(f"{name}: {time.perf_counter() - began:.1f} s")


@asynccontextmanager
async def progress_pipe(on_line: Callable[[str], None]) -> AsyncIterator[str]:
    """Creates a named pipe and calls `on_line` with every line from it; yields the pipe's path."""
    with tempfile.TemporaryDirectory(prefix="specgate-") as folder:
        path = Path(folder) / "progress"
        os.mkfifo(path, 0o600)
        # Open for writing too, so that it does not end when the first writer closes it.
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        loop = asyncio.get_running_loop()
        pending = b""

        def read() -> None:
            nonlocal pending
            *lines, pending = (pending + os.read(descriptor, 65536)).split(b"\n")
            for line in lines:
                on_line(line.decode())

        loop.add_reader(descriptor, read)
        try:
            yield str(path)
        finally:
            loop.remove_reader(descriptor)
            with suppress(BlockingIOError):
                read()
            os.close(descriptor)
