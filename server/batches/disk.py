"""`Disk`: the threads that wait for the disk, so that the event loop does not."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from server.batches.folder import Folder

THREADS = 4
"""A disk that hangs holds up files and batches, and no other threads."""


class Closable(Protocol):
    """Something that is open."""

    def close(self) -> object:
        """Closes it."""
        ...


T = TypeVar("T")
C = TypeVar("C", bound=Closable)


class Disk:
    """A folder, and threads in which its methods are called."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._threads = ThreadPoolExecutor(THREADS, "files")

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, in a thread. A thread that has started ends its work."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def open(self, work: Callable[[], C]) -> C:
        """What `work` opens, in a thread. It is closed if the caller is cancelled meanwhile."""
        job = self._threads.submit(work)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            job.add_done_callback(_close_result)
            raise

    def close(self) -> None:
        """Waits for the threads, and lets another server use the folder."""
        self._threads.shutdown()
        self.folder.close()


def _close_result(job: "Future[Any]") -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().close()
