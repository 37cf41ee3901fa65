"""The folder of files and batches on disk.

    lock               held by the server that uses the folder
    files/ID           the content of a file
    files/ID.json      its record; content without one is removed at the start
    batches/ID.json    the record of a batch
    uploads/           what has not arrived in full; emptied at the start

All names are made here. What clients send is in the records only, so no path leaves the folder.
"""

import fcntl
import json
import os
import re
import uuid
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import structlog

from server.settings.types import SettingError

_ID = re.compile(r"(?:file-|batch_)[0-9a-f]{32}")

log = structlog.get_logger(__name__)


class Kind(StrEnum):
    """What has records. Its value is the folder of them."""

    FILE = "files"
    BATCH = "batches"


_PREFIXES = {Kind.FILE: "file-", Kind.BATCH: "batch_"}


def new_id(kind: Kind) -> str:
    """A new id that cannot be guessed."""
    return f"{_PREFIXES[kind]}{uuid.uuid4().hex}"


class Folder:
    """An open folder. Its methods wait for the disk; call them in a thread.

    Raises:
        OSError: it cannot be made or used; another server uses it.
    """

    def __init__(self, path: str) -> None:
        self._root = Path(path)
        self._root.mkdir(mode=0o700, exist_ok=True)
        self._lock = open(self._root / "lock", "ab")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in (*Kind, "uploads"):
                (self._root / name).mkdir(mode=0o700, exist_ok=True)
            for unfinished in ((self._root / "uploads").iterdir(), self._root.glob("*/*.new")):
                for unfinished_path in unfinished:
                    unfinished_path.unlink()
        except BlockingIOError as error:
            self._lock.close()
            raise OSError(error.errno, "another server uses it") from None
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Lets another server use the folder."""
        self._lock.close()

    def content(self, file_id: str) -> Path:
        """Where the content of a file is."""
        return self._path(Kind.FILE, file_id, "")

    def upload(self, file_id: str) -> Path:
        """Where the content of a file is while it arrives."""
        return self._root / "uploads" / self.content(file_id).name

    def save(self, kind: Kind, record_id: str, record: dict[str, Any]) -> None:
        """Writes a record: the disk has the whole new one, or still the old one."""
        path = self._path(kind, record_id, ".json")
        temporary = path.with_suffix(f".{uuid.uuid4().hex}.new")
        with temporary.open("w", encoding="ascii") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def remove(self, kind: Kind, record_id: str) -> None:
        """Removes a record, and the content of a file. Does nothing if there is none."""
        if kind is Kind.FILE:
            # A record without content is removed at the next start; nothing shows the opposite.
            self.content(record_id).unlink(missing_ok=True)
        self._path(kind, record_id, ".json").unlink(missing_ok=True)

    def remove_contents(self, needed_ids: Collection[str]) -> None:
        """Removes each content without a record: a crash came between the two.

        Args:
            needed_ids: of contents that get their record later.
        """
        for path in list((self._root / Kind.FILE).iterdir()):
            has_record = path.with_name(f"{path.name}.json").exists()
            if _ID.fullmatch(path.name) and not has_record and path.name not in needed_ids:
                path.unlink()

    def records(self, kind: Kind) -> Iterator[dict[str, Any]]:
        """All records of a kind. One that cannot be read is left where it is, and logged."""
        for path in sorted((self._root / kind).glob("*.json")):
            if not _ID.fullmatch(path.stem):
                continue
            try:
                record = json.loads(path.read_text("ascii"))
            except (OSError, ValueError) as error:
                log.error("record_unreadable", file=str(path), reason=str(error))
                continue
            if isinstance(record, dict):
                yield record | {"id": path.stem}
            else:
                log.error("record_unreadable", file=str(path), reason="it is not a JSON object")

    def _path(self, kind: Kind, record_id: str, ending: str) -> Path:
        if not _ID.fullmatch(record_id):
            raise ValueError(f"{record_id!r} is not an id")
        return self._root / kind / f"{record_id}{ending}"


def open_folder(path: str | None) -> Folder | None:
    """The folder of the settings, if they have one. Raises `SettingError`."""
    if path is None:
        return None
    try:
        return Folder(path)
    except OSError as error:
        raise SettingError("files_dir", f"cannot use {path}: {error.strerror}") from None
