"""`BatchStore`: the batches of all owners, on disk."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import structlog

from engine_adapter.seam.text import short_repr
from server.batches.batch import Batch, Status
from server.batches.files import INPUT, FileStore, FilesUnavailable, StoredFile
from server.batches.folder import Kind
from server.control.admission.limit_errors import MAX_RETRY_AFTER_S, TooManyRequests
from server.errors import ApiError, InvalidField, NotFound
from server.schema.batches import BatchRequest
from server.telemetry.batch_metrics import BatchMetrics

MAX_ENDED = 1000
"""The most ended batches of an owner that are kept; the oldest ones are forgotten."""

FILES_OF_BATCH = 2
"""The files that a batch may write: answers and errors."""

log = structlog.get_logger(__name__)


class BatchLimit(TooManyRequests):
    """429: the owner has as many unfinished batches as it may have."""

    code = "batch_limit_exceeded"

    def __init__(self, max_batches: int) -> None:
        super().__init__(
            f"This API key can have at most {max_batches} batches that have not ended. "
            "Wait for one to end, or cancel one.",
            MAX_RETRY_AFTER_S,
        )


class BatchStore:
    """The batches of all owners. Lives on the event loop; the disk is used in threads.

    Attributes:
        num_unfinished: batches of all owners that have not ended.
    """

    def __init__(self, files: FileStore, metrics: BatchMetrics) -> None:
        self.files = files
        self._metrics = metrics
        self._disk = files.disk
        self._batches: dict[str, dict[str, Batch]] = {}
        self.num_unfinished = 0
        self._unsaved_ids: set[str] = set()
        self._writing: dict[str, asyncio.Lock] = {}
        files.is_used = self._uses

    def load(self, records: Iterator[Mapping[str, Any]]) -> None:
        """Takes the batches of an earlier run. Waits for the disk; called once."""
        batches = []
        for record in records:
            try:
                batches.append(Batch.from_record(record))
            except (TypeError, ValueError, KeyError) as error:
                log.error("record_unreadable", batch=record["id"], reason=str(error))
        for batch in sorted(batches, key=lambda each: (each.created_at, each.id)):
            self._of(batch.owner)[batch.id] = batch
            if not batch.has_ended:
                self._count_unfinished(batch.owner, 1)
        results = {file_id for batch in self.unfinished() for file_id in batch.file_ids}
        self._disk.folder.remove_contents(results)

    async def create(self, owner: str, request: BatchRequest) -> Batch:
        """A new batch, which waits for its turn.

        Raises:
            NotFound, InvalidField: the file does not exist, or cannot be the input of a batch.
            QuotaExceeded, BatchLimit: the owner has too many files or batches.
            FilesUnavailable: the disk is full, or fails.
        """
        file = self.files.find(request.input_file_id, owner, "input_file_id")
        if file.purpose != INPUT:
            reason = f"input_file_id: {file.id} is the output of a batch; upload a file."
            raise InvalidField("input_file_id", reason)
        max_batches = self.files.settings.max_key_batches
        if sum(not batch.has_ended for batch in self._of(owner).values()) >= max_batches:
            raise BatchLimit(max_batches)
        batch = Batch.from_request(owner, request, int(self.files.now()))
        with self.files.pending(owner, FILES_OF_BATCH):
            self._of(owner)[batch.id] = batch
            self._unsaved_ids.add(batch.id)
            try:
                await self._write(batch)
            except BaseException as error:
                del self._of(owner)[batch.id]
                if isinstance(error, OSError):
                    raise FilesUnavailable(error) from None
                raise
            finally:
                self._unsaved_ids.discard(batch.id)
            self._count_unfinished(owner, 1)
        return batch

    def find(self, batch_id: str, owner: str) -> Batch:
        """The owner's batch of this id. Raises `NotFound`."""
        batch = self._of(owner).get(batch_id)
        if batch is None:
            message = f"There is no batch {short_repr(batch_id)}; ended ones are forgotten in time."
            raise NotFound(message, param="batch_id", code="batch_not_found")
        return batch

    def of_owner(self, owner: str) -> list[Batch]:
        """The owner's batches, the oldest first."""
        return list(self._of(owner).values())

    def unfinished(self) -> list[Batch]:
        """The saved batches that have not ended, the oldest of each owner first."""
        return [
            batch
            for batches in self._batches.values()
            for batch in batches.values()
            if not batch.has_ended and batch.id not in self._unsaved_ids
        ]

    async def begin_cancel(self, batch: Batch) -> None:
        """Gives a batch the status `cancelling`. Raises `ApiError` (409) if it has ended."""
        if batch.has_ended or batch.status is Status.FINALIZING:
            message = f"The batch is {batch.status} and cannot be cancelled."
            raise ApiError(409, message, param="batch_id", code="batch_ended")
        if batch.status is not Status.CANCELLING:
            await self.reach(batch, Status.CANCELLING)

    async def reach(self, batch: Batch, status: Status) -> None:
        """Gives a batch a status.

        If the disk does not take it, the log says so, and after a restart the batch continues from
        the status before, which repeats no line.
        """
        batch.reach(status, int(self.files.now()))
        if batch.has_ended:
            self._count_unfinished(batch.owner, -1)
            self._metrics.count_ended(batch.status)
            log.info(
                "batch_ended",
                batch=batch.id,
                key=batch.owner or None,
                status=batch.status,
                requests=batch.total,
                completed=batch.completed,
                failed=batch.failed,
            )
        try:
            await self._write(batch)
            await self._forget_some(batch.owner)
        except OSError as error:
            log.error("batch_not_saved", batch=batch.id, status=status, reason=str(error))

    async def expire(self) -> None:
        """Forgets ended batches whose time is over."""
        now_s, lifetime_s = self.files.now(), self.files.settings.file_lifetime_s
        for batches in list(self._batches.values()):
            for batch in list(batches.values()):
                if batch.has_ended and now_s >= batch.created_at + lifetime_s:
                    await self._forget(batch)

    def _count_unfinished(self, owner: str, change: int) -> None:
        """Counts a batch, and the two files that it writes, until it has ended."""
        self.num_unfinished += change
        self.files.shelf(owner).num_pending += FILES_OF_BATCH * change

    async def _forget_some(self, owner: str) -> None:
        ended_batches = [batch for batch in self._of(owner).values() if batch.has_ended]
        for batch in ended_batches[: max(0, len(ended_batches) - MAX_ENDED)]:
            await self._forget(batch)

    async def _forget(self, batch: Batch) -> None:
        self._writing.pop(batch.id, None)
        if self._of(batch.owner).pop(batch.id, None) is not None:
            await self._disk.run(lambda: self._disk.folder.remove(Kind.BATCH, batch.id))

    async def _write(self, batch: Batch) -> None:
        # One write of a batch at a time: the last one has its latest status.
        async with self._writing.setdefault(batch.id, asyncio.Lock()):
            record = batch.record()
            await self._disk.run(lambda: self._disk.folder.save(Kind.BATCH, batch.id, record))

    def _of(self, owner: str) -> dict[str, Batch]:
        return self._batches.setdefault(owner, {})

    def _uses(self, file: StoredFile) -> bool:
        """Whether a batch that has not ended needs a file."""
        batches = self._of(file.owner).values()
        return any(file.id in batch.file_ids for batch in batches if not batch.has_ended)
