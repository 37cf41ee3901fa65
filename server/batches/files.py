"""`FileStore`: the files of all owners, with a quota for each, on disk."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from engine_adapter.seam.text import short_repr
from server.batches.disk import Disk
from server.batches.folder import Kind
from server.control.admission.limit_errors import ConcurrencyLimit
from server.errors import ApiError, NotFound, Unavailable
from server.settings.batch_settings import BatchSettings

log = structlog.get_logger(__name__)

MAX_TRANSFERS = 8
"""The most uploads and downloads of an owner at a time: each has an open file."""

INPUT, OUTPUT = "batch", "batch_output"
"""The purposes of files: what clients upload, and what batches write."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file.

    Attributes:
        owner: who may use it; see `server.http.auth.key_owner`.
        name: as the client calls it. It is shown, and nothing else.
        created_at, expires_at: Unix times in seconds.
    """

    id: str
    owner: str
    name: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int


class FileTooLarge(ApiError):
    """413: an upload is larger than a file may be."""

    def __init__(self, max_bytes: int) -> None:
        message = f"file: the file is larger than {max_bytes} bytes."
        super().__init__(413, message, param="file", code="request_too_large")


class QuotaExceeded(ApiError):
    """400: the owner has as many files, or bytes, as it may have."""

    def __init__(self, reason: str) -> None:
        message = f"This API key has {reason}. Delete files that are not needed."
        super().__init__(400, message, param="file", code="file_quota_exceeded")


class FilesUnavailable(Unavailable):
    """503: the folder cannot be written or read."""

    def __init__(self, cause: OSError) -> None:
        reason = cause.strerror or type(cause).__name__
        super().__init__(f"The server cannot use its files: {reason}.", "files_unavailable")


class Shelf:
    """The files of one owner, the oldest first.

    Attributes:
        num_bytes: of its files, of its uploads so far and of the output of its batches so far.
        num_pending: files that will exist: its uploads, and the output of its batches.
        num_transfers: uploads and downloads that run.
    """

    def __init__(self) -> None:
        self.files: dict[str, StoredFile] = {}
        self.num_bytes = 0
        self.num_pending = 0
        self.num_transfers = 0


class FileStore:
    """The files of all owners. Lives on the event loop; the disk is used in threads.

    Args:
        clock: Unix time in seconds.

    Attributes:
        is_used: whether a file must stay, because a batch needs it.
        num_files: of all owners.
        num_bytes: of all owners, as `Shelf.num_bytes`.
    """

    def __init__(
        self, disk: Disk, settings: BatchSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self.disk = disk
        self.settings = settings
        self.now = clock
        self.num_files = self.num_bytes = 0
        self._shelves: dict[str, Shelf] = {}
        self.is_used: Callable[[StoredFile], bool] = lambda file: False

    def load(self, records: Iterator[Mapping[str, Any]]) -> None:
        """Takes the files of an earlier run. Waits for the disk; called once, before requests.

        A record whose content is gone is removed, and one of other fields is left out.
        """
        files = []
        for record in records:
            try:
                files.append(StoredFile(**record))
            except TypeError as error:
                log.error("record_unreadable", file=record["id"], reason=str(error))
        for file in sorted(files, key=lambda each: (each.created_at, each.id)):
            if self.disk.folder.content(file.id).is_file():
                self._place(file)
                self.count_bytes(file.owner, file.num_bytes)
            else:
                self.disk.folder.remove(Kind.FILE, file.id)

    def shelf(self, owner: str) -> Shelf:
        """The files of an owner."""
        return self._shelves.setdefault(owner, Shelf())

    def find(self, file_id: str, owner: str, param: str = "file_id") -> StoredFile:
        """The owner's file of this id. Raises `NotFound`."""
        file = self.shelf(owner).files.get(file_id)
        if file is None or self.now() >= file.expires_at:
            message = f"There is no file {short_repr(file_id)}; files expire."
            raise NotFound(message, param=param, code="file_not_found")
        return file

    def of_owner(self, owner: str, purpose: str | None = None) -> list[StoredFile]:
        """The owner's files, the oldest first."""
        now_s = self.now()
        return [
            file
            for file in self.shelf(owner).files.values()
            if purpose in (None, file.purpose) and now_s < file.expires_at
        ]

    @contextmanager
    def pending(self, owner: str, count: int) -> Iterator[None]:
        """Keeps room for files that will exist, until the block ends. Raises `QuotaExceeded`."""
        shelf, max_files = self.shelf(owner), self.settings.max_key_files
        num_files = len(shelf.files) + shelf.num_pending
        if num_files + count > max_files:
            raise QuotaExceeded(
                f"{num_files} files of at most {max_files}, with those that arrive or are written"
            )
        shelf.num_pending += count
        try:
            yield
        finally:
            shelf.num_pending -= count

    @contextmanager
    def transfer(self, owner: str) -> Iterator[None]:
        """Counts an upload or a download until the block ends. Raises `ConcurrencyLimit`."""
        shelf = self.shelf(owner)
        if shelf.num_transfers >= MAX_TRANSFERS:
            raise ConcurrencyLimit(MAX_TRANSFERS)
        shelf.num_transfers += 1
        try:
            yield
        finally:
            shelf.num_transfers -= 1

    def check_bytes(self, owner: str, num_bytes: int = 0) -> None:
        """Raises `QuotaExceeded` if the owner may not have so many bytes more."""
        shelf, max_bytes = self.shelf(owner), self.settings.max_key_file_bytes
        if shelf.num_bytes + num_bytes > max_bytes:
            raise QuotaExceeded(f"{shelf.num_bytes} bytes of files, of at most {int(max_bytes)}")

    def count_bytes(self, owner: str, num_bytes: int) -> None:
        """Counts bytes that were written, or, if negative, that are not there any more."""
        self.shelf(owner).num_bytes += num_bytes
        self.num_bytes += num_bytes

    def new_file(
        self, file_id: str, owner: str, name: str, purpose: str, num_bytes: int, seconds: int | None
    ) -> StoredFile:
        """A file that begins now; `seconds` is the life that its client asks for."""
        created_at, lifetime_s = int(self.now()), self.settings.file_lifetime_s
        expires_at = created_at + min(lifetime_s, seconds or lifetime_s)
        return StoredFile(file_id, owner, name, purpose, num_bytes, created_at, expires_at)

    async def add(self, file: StoredFile) -> None:
        """Adds a file whose content is in its place, and whose bytes were taken."""
        await self.disk.run(lambda: self.disk.folder.save(Kind.FILE, file.id, asdict(file)))
        self._place(file)

    async def delete(self, file: StoredFile) -> None:
        """Deletes a file.

        Raises:
            ApiError: 409: a batch uses it.
            FilesUnavailable: the disk fails.
        """
        if self.is_used(file):
            message = f"The file {file.id} belongs to a batch that has not ended; cancel it first."
            raise ApiError(409, message, param="file_id", code="file_in_use")
        try:
            await self._drop(file)
        except OSError as error:
            raise FilesUnavailable(error) from None

    async def expire(self) -> None:
        """Deletes the files whose time is over."""
        now_s = self.now()
        for shelf in list(self._shelves.values()):
            for file in list(shelf.files.values()):
                if now_s >= file.expires_at and not self.is_used(file):
                    await self._drop(file)

    async def _drop(self, file: StoredFile) -> None:
        if self.shelf(file.owner).files.pop(file.id, None) is not None:
            self.num_files -= 1
            self.count_bytes(file.owner, -file.num_bytes)
            await self.disk.run(lambda: self.disk.folder.remove(Kind.FILE, file.id))

    def _place(self, file: StoredFile) -> None:
        files = self.shelf(file.owner).files
        self.num_files += file.id not in files
        files[file.id] = file
