"""`Batches`: the files and batches of a server, from its start to its stop."""

from collections.abc import Callable

import httpx
from starlette.types import ASGIApp

from server.batches.disk import Disk
from server.batches.files import FileStore
from server.batches.folder import Folder, Kind
from server.batches.store import BatchStore
from server.batches.worker import BatchWorker
from server.http.background import Background
from server.settings import Settings
from server.telemetry.batch_metrics import BatchMetrics


class Batches:
    """The files and batches of all owners.

    Args:
        application: answers the lines.

    Attributes:
        files: the files.
        store: the batches.
    """

    def __init__(
        self, folder: Folder, settings: Settings, metrics: BatchMetrics, application: ASGIApp
    ) -> None:
        self._disk = Disk(folder)
        self._settings = settings
        self._application = application
        self._metrics = metrics
        self.files = FileStore(self._disk, settings)
        self.store = BatchStore(self.files, metrics)
        self._worker: BatchWorker | None = None
        self.files.load(folder.records(Kind.FILE))
        self.store.load(folder.records(Kind.BATCH))
        metrics.watch(self.files, self.store)

    def begin(self, may_run: Callable[[str], bool], concurrency: int) -> None:
        """Answers batches from now on; see `BatchWorker`."""
        worker = (self.store, self._settings, self._metrics, self._client, may_run, concurrency)
        self._worker = BatchWorker(*worker)

    def wake(self) -> None:
        """A batch is new, or is to be cancelled."""
        if self._worker is not None:
            self._worker.wake()

    def leave(self) -> None:
        """The server is to stop: no further line is sent. Safe to call twice."""
        if self._worker is not None:
            self._worker.leave()

    async def close(self) -> None:
        """Interrupts batches, which continue at the next start, and leaves the folder."""
        if self._worker is not None:
            await self._worker.close()
        self._disk.close()

    def _client(self, owner: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(Background(self._application, owner))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")
