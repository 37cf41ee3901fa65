"""`BatchWorker`: answers the batches of all owners, each owner's one after the other.

The lines go through the same routes as over HTTP, and wait for slots behind every other request.
An entry is on the disk before its line counts as answered. So a batch that a stop of the server
interrupts continues at the next start, and no entry is lost or written twice; a line that was being
answered then is answered again.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import httpx
import structlog

from server.batches.batch import Batch, Status
from server.batches.files import OUTPUT, QuotaExceeded
from server.batches.lines import (
    BadLine,
    BatchError,
    Entry,
    LineRules,
    RepeatedCustomId,
    Request,
    count_input,
)
from server.batches.results import Results
from server.batches.sending import EngineGone, answer_lines
from server.batches.store import BatchStore
from server.settings import Settings
from server.telemetry.batch_metrics import BatchMetrics

TICK_S = 30.0
"""Seconds after which expired files and batches are looked for."""

_ENDINGS = {
    Status.CANCELLED: (
        "batch_cancelled",
        "The batch was cancelled before this request was answered.",
    ),
    Status.EXPIRED: (
        "batch_expired",
        "The completion window ended before this request was answered.",
    ),
}

NewClient = Callable[[str], AbstractAsyncContextManager[httpx.AsyncClient]]
"""A client whose requests are those of an owner, in the background."""

log = structlog.get_logger(__name__)


class _Failed(BatchError):
    """The batch fails; `fault` is why, as in `Batch.faults`."""

    def __init__(self, code: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.fault = {"code": code, "message": message, "line": line, "param": None}


class BatchWorker:
    """Runs until `close`.

    Args:
        new_client: makes the client for the lines of an owner.
        may_run: whether the owner's key is still one of the server's.
        concurrency: lines of a batch at a time.
    """

    def __init__(
        self,
        store: BatchStore,
        settings: Settings,
        metrics: BatchMetrics,
        new_client: NewClient,
        may_run: Callable[[str], bool],
        concurrency: int,
    ) -> None:
        self._store = store
        self._files = store.files
        self._disk = store.files.disk
        self._settings = settings
        self._metrics = metrics
        self._new_client = new_client
        self._may_run = may_run
        self._concurrency = concurrency
        self._wake = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}
        self._is_leaving = False
        self._loop_task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """A batch is new, or is to be cancelled."""
        self._wake.set()

    def leave(self) -> None:
        """The server is to stop: no further line is sent. Safe to call twice."""
        self._is_leaving = True

    async def close(self) -> None:
        """Interrupts what runs. All that was answered is on the disk."""
        self.leave()
        tasks = [self._loop_task, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while not self._is_leaving:
            try:
                await self._files.expire()
                await self._store.expire()
            except OSError as error:
                log.error("files_not_deleted", reason=str(error))
            self._begin_some()
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def _begin_some(self) -> None:
        """Begins the next batch of each owner, and what is only to be ended."""
        unfinished = self._store.unfinished()
        busy_owners = {batch.owner for batch in unfinished if batch.id in self._tasks}
        for batch in unfinished:
            if batch.status is Status.CANCELLING:
                self._stops.setdefault(batch.id, asyncio.Event()).set()
            if batch.id in self._tasks:
                continue
            only_ends = self._is_over(batch) or batch.status is Status.CANCELLING
            if not only_ends and (batch.owner in busy_owners or not self._may_run(batch.owner)):
                continue
            busy_owners.add(batch.owner)
            self._stops.setdefault(batch.id, asyncio.Event())
            self._tasks[batch.id] = asyncio.create_task(self._process(batch))

    def _is_over(self, batch: Batch) -> bool:
        return self._files.now() >= batch.expires_at

    async def _process(self, batch: Batch) -> None:
        try:
            await self._answer(batch)
        except EngineGone as error:
            # Only a restart of the server helps, after which the batches continue.
            self._is_leaving = True
            log.error("batches_interrupted", reason=str(error))
        except Exception as error:
            batch.faults.append(_fault(error))
            await self._store.reach(batch, Status.FAILED)
        finally:
            del self._tasks[batch.id]
            self._stops.pop(batch.id, None)
            if batch.has_ended:
                self._wake.set()  # one that has not ended is tried again at the next tick

    async def _answer(self, batch: Batch) -> None:
        """Answers what has no answer, and ends the batch unless the server stops before."""
        results, status = None, None
        path, rules = self._disk.folder.content(batch.input_file_id), self._rules(batch)
        try:
            if not batch.total:
                batch.total = await self._validated(batch)
            if batch.status is Status.VALIDATING:
                await self._store.reach(batch, Status.IN_PROGRESS)
            results = await self._open(batch)
            status = await self._answer_lines(batch, results, results.remaining(path, rules))
            if status in _ENDINGS:
                ending = partial(results.write_rest, path, rules, *_ENDINGS[status])
                num_failed = len(results.errors.done)
                self._count_results(batch, results, await self._disk.run(ending))
                self._metrics.count_unanswered(len(results.errors.done) - num_failed)
            elif status is not None and batch.status is not Status.FINALIZING:
                await self._store.reach(batch, Status.FINALIZING)
        except EngineGone:
            raise
        except Exception as error:
            status = Status.FAILED
            batch.faults.append(_fault(error))
        finally:
            is_kept = results is None or await self._close(
                batch, results, has_ended=status is not None
            )
        if status is not None and is_kept:
            await self._store.reach(batch, status)

    async def _validated(self, batch: Batch) -> int:
        """The number of lines. Raises `_Failed` or `BatchError`."""
        path, rules = self._disk.folder.content(batch.input_file_id), self._rules(batch)
        max_lines = self._settings.max_batch_requests
        total = await self._disk.run(lambda: count_input(path, rules, max_lines))
        if not total:
            raise _Failed("empty_file", "The file has no requests.")
        if total > max_lines:
            raise _Failed("too_many_requests", f"The file has more than {max_lines} lines.")
        return total

    def _rules(self, batch: Batch) -> LineRules:
        settings = self._settings
        return LineRules((batch.endpoint,), settings.max_body_bytes, settings.max_body_values)

    async def _open(self, batch: Batch) -> Results:
        folder = self._disk.folder
        answers, errors = (folder.content(i) for i in (batch.output_file_id, batch.error_file_id))
        results = await self._disk.open(lambda: Results(answers, errors))
        self._count(batch, results)
        self._count_results(batch, results, self._uncounted(batch, results.sizes))
        return results

    def _count_results(self, batch: Batch, results: Results, num_bytes: int) -> None:
        """Counts bytes of results for their owner."""
        results.counted_bytes += num_bytes
        self._files.count_bytes(batch.owner, num_bytes)

    def _uncounted(self, batch: Batch, sizes: tuple[int, int]) -> int:
        """The bytes of results that are not files yet; after a restart they may be."""
        files = self._files.shelf(batch.owner).files
        ids = (batch.output_file_id, batch.error_file_id)
        return sum(size for i, size in zip(ids, sizes, strict=True) if i not in files)

    async def _close(self, batch: Batch, results: Results, *, has_ended: bool) -> bool:
        """Closes the results, and makes them files if the batch has ended.

        Returns whether the batch may end: if the disk does not take the files, it continues later.
        """
        sizes = await self._disk.run(results.close)
        self._count(batch, results)
        # A thread may have written an entry after its line was given up.
        self._count_results(batch, results, self._uncounted(batch, sizes) - results.counted_bytes)
        if has_ended:
            try:
                await self._keep(batch, *sizes)
                return True
            except OSError as error:
                log.error("batch_files_not_saved", batch=batch.id, reason=str(error))
        self._count_results(batch, results, -self._uncounted(batch, sizes))
        return False

    async def _answer_lines(
        self, batch: Batch, results: Results, items: Iterator[Request | BadLine]
    ) -> Status | None:
        """Answers lines. Returns the status with which the batch ends; `None`: it does not yet."""
        stop, reading, interrupted = self._stops[batch.id], asyncio.Lock(), False

        async def next_item() -> Request | BadLine | None:
            nonlocal interrupted
            if self._is_leaving or not self._may_run(batch.owner):
                interrupted = True
                return None
            async with reading:
                return await self._disk.run(lambda: next(items, None))

        if stop.is_set() or (self._is_over(batch) and batch.status is not Status.FINALIZING):
            return Status.CANCELLED if stop.is_set() else Status.EXPIRED
        async with self._new_client(batch.owner) as client:
            write = partial(self._write, batch, results)
            lines = asyncio.create_task(answer_lines(client, next_item, write, self._concurrency))
            stopping = asyncio.create_task(stop.wait())
            try:
                seconds = batch.expires_at - self._files.now()
                await asyncio.wait(
                    {lines, stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if lines.done():
                    lines.result()
                    num_entries = len(results.answers.done) + len(results.errors.done)
                    is_complete = num_entries >= batch.total
                    return Status.COMPLETED if is_complete and not interrupted else None
                return Status.CANCELLED if stop.is_set() else Status.EXPIRED
            finally:
                lines.cancel()
                stopping.cancel()
                await asyncio.gather(lines, stopping, return_exceptions=True)

    async def _write(
        self,
        batch: Batch,
        results: Results,
        item: Request | BadLine,
        make_entry: Callable[[], Entry],
    ) -> None:
        """Writes an entry. Raises `BatchError`, also if the owner has too many bytes."""
        entry = await self._disk.run(lambda: results.write(item, make_entry))
        self._count(batch, results)
        self._metrics.count_request(completed=entry.completed)
        self._count_results(batch, results, entry.num_bytes)
        try:
            self._files.check_bytes(batch.owner)
        except QuotaExceeded as error:
            raise _Failed("file_quota_exceeded", error.message) from None

    def _count(self, batch: Batch, results: Results) -> None:
        batch.completed, batch.failed = len(results.answers.done), len(results.errors.done)
        batch.tokens = results.answers.done.tokens

    async def _keep(self, batch: Batch, answers_bytes: int, errors_bytes: int) -> None:
        """Makes the results files of the owner. Their bytes were counted as they were written."""
        for file_id, num_bytes, kind in (
            (batch.output_file_id, answers_bytes, "output"),
            (batch.error_file_id, errors_bytes, "error"),
        ):
            if num_bytes:
                name = f"{batch.id}_{kind}.jsonl"
                traits = (file_id, batch.owner, name, OUTPUT, num_bytes, batch.output_lifetime_s)
                await self._files.add(self._files.new_file(*traits))
        batch.has_output, batch.has_errors = bool(answers_bytes), bool(errors_bytes)


def _fault(error: Exception) -> dict[str, Any]:
    """Why a batch fails, without the paths of the server."""
    match error:
        case _Failed():
            return error.fault
        case RepeatedCustomId():
            return _Failed("duplicate_custom_id", error.reason, error.line).fault
        case BatchError():
            log.error("batch_files_unusable", reason=str(error))
            message = "The server cannot use the files of the batch; its log says why."
            return _Failed("files_unavailable", message).fault
    log.error("batch_failed", exc_info=error)
    message = "Internal server error; the server's log has the details."
    return _Failed("internal_error", message).fault
