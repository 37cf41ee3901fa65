"""The audit: a record of every admin change, with its caller, reason and outcome.

The last `REMEMBERED` are kept in memory. All are logged and, if a file is given, appended to it
as JSON lines.

If the record is required, a change begins with a line that it is intended. Without that line on the
disk nothing is changed. The record of the outcome follows; if that one cannot be written, the
change has happened, and the log and a metric tell of it.
"""

import asyncio
import errno
import json
import os
import time
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

import structlog

from engine_adapter.seam.errors import LoraRefused, ProposerRefused
from engine_adapter.seam.text import truncate
from server.control.admin.allowed_models import ModelNotAllowed
from server.control.records import (
    Intent,
    LoraRecord,
    PolicyRecord,
    ProposerRecord,
    Record,
    SwitchRecord,
    log_fields,
)
from server.control.types import Caller, LoadOutcome
from server.errors import AuditUnavailable
from server.telemetry.file_metrics import AuditPart, FileMetrics
from server.text import replace_surrogates

REMEMBERED = 100
"""How many records of switches, of proposers and of policies are kept in memory."""

MAX_ERROR = 500
"""The most characters of an error's message that a record keeps."""

DISK_S = 10.0
"""Seconds in which a required line must be on the disk."""

_REFUSALS = (ProposerRefused, LoraRefused, ModelNotAllowed, AuditUnavailable)

_WITHOUT_DISK = (errno.EINVAL, errno.ENOTSUP)
"""What `fsync` says of a pipe or a device, whose lines need no disk."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


def _private(path: str, flags: int) -> int:
    """Opens a file that, if it is new, only its owner may read: it names callers and addresses."""
    return os.open(path, flags, 0o600)


class Audit:
    """The records, in memory and in a file.

    The file has its own writer: a logging handler would retry or report a failed line by itself,
    and could not tell that a full disk cut a line short.

    Args:
        path: the file to append to; `None` keeps records in memory only.
        required: a change is refused if its record cannot be written.

    Attributes:
        metrics: counts lines that could not be written.

    Raises:
        OSError: the file cannot be opened for appending.
    """

    def __init__(self, path: str | None = None, *, required: bool = False) -> None:
        self._switches: deque[SwitchRecord] = deque(maxlen=REMEMBERED)
        self._changes: deque[ProposerRecord] = deque(maxlen=REMEMBERED)
        self._policy_changes: deque[PolicyRecord] = deque(maxlen=REMEMBERED)
        # Without a buffer, a line that could not be written is not retried with the next one.
        self._file: BinaryIO | None = None
        if path is not None:
            self._file = open(path, "ab", buffering=0, opener=_private)  # noqa: SIM115
        self.metrics: FileMetrics | None = None
        self._required = required
        # One thread: a disk that hangs must not take those of others.
        self._disk = ThreadPoolExecutor(1, "audit")
        self._broken = self._is_cut = False

    @property
    def switches(self) -> tuple[SwitchRecord, ...]:
        """The last switches, newest first."""
        return tuple(reversed(self._switches))

    @property
    def proposer_changes(self) -> tuple[ProposerRecord, ...]:
        """The last loads and unloads of proposers, newest first."""
        return tuple(reversed(self._changes))

    @property
    def policy_changes(self) -> tuple[PolicyRecord, ...]:
        """The last changes of policies and routing rules, newest first."""
        return tuple(reversed(self._policy_changes))

    def add(self, record: Record) -> None:
        """Logs and writes a record, and keeps it in memory unless it is a LoRA adapter's.

        Never raises: the change has happened.
        """
        if isinstance(record, SwitchRecord):
            self._switches.append(record)
        elif isinstance(record, ProposerRecord):
            self._changes.append(record)
        elif isinstance(record, PolicyRecord):
            self._policy_changes.append(record)
        fields = log_fields(record)
        log.info("admin_change", **fields)
        if self._file is not None:
            self._write(self._file, fields, AuditPart.OUTCOME)

    def intend(self, intent: Intent) -> AuditUnavailable | None:
        """Writes a change that is about to be made, if its record is required.

        Returns why the change must not be made. `ensure_written` has to follow before it is.
        """
        if not self._required or self._file is None:
            return None
        return self._write(self._file, log_fields(intent), AuditPart.INTENT)

    async def ensure_written(self) -> None:
        """Waits until what `intend` has written is on the disk. Raises `AuditUnavailable`."""
        if not self._required or self._file is None:
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DISK_S):
                await loop.run_in_executor(self._disk, _flush, self._file.fileno())
            # A disk can take a line and then fail to keep it.
            self._broken = False
        except TimeoutError:
            error = TimeoutError(f"the disk took more than {DISK_S:g} s")
            raise self._failed(self._file, AuditPart.INTENT, error) from None
        except OSError as error:
            raise self._failed(self._file, AuditPart.INTENT, error) from None

    async def intended(self, intent: Intent) -> None:
        """`intend` and `ensure_written`. Raises `AuditUnavailable`."""
        if (refusal := self.intend(intent)) is not None:
            raise refusal
        await self.ensure_written()

    async def recorded(
        self,
        change: Coroutine[Any, Any, T],
        kind: type[ProposerRecord] | type[LoraRecord],
        what: str,
        name: str,
        success: LoadOutcome,
        caller: Caller,
    ) -> T:
        """Waits for a load or an unload and records its outcome, `success` if it does not raise.

        The change continues if its caller is cancelled. Raises `AuditUnavailable` and what the
        change raises.
        """
        label = "proposer" if kind is ProposerRecord else "adapter"

        async def run() -> T:
            when, start_s = time.time(), time.perf_counter()
            outcome, message = success, None
            try:
                await self.intended(Intent(when, caller.who, caller.peer, what, {label: name}))
                return await change
            except BaseException as error:
                is_refused = isinstance(error, _REFUSALS)
                outcome = LoadOutcome.REFUSED if is_refused else LoadOutcome.FAILED
                message = (
                    truncate(replace_surrogates(str(error)), MAX_ERROR) or type(error).__name__
                )
                raise
            finally:
                change.close()  # one that was refused has not begun
                took_ms = round((time.perf_counter() - start_s) * 1e3, 3)
                who, peer = caller.who, caller.peer
                self.add(kind(when, who, peer, what, name, outcome, message, took_ms))

        return await asyncio.shield(asyncio.create_task(run()))

    def close(self) -> None:
        """Closes the file. Safe to call twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self._disk.shutdown(wait=False)

    def _write(
        self, file: BinaryIO, fields: dict[str, Any], part: AuditPart
    ) -> AuditUnavailable | None:
        """Appends a line. Returns why it is not in the file."""
        line = json.dumps(fields).encode() + b"\n"
        if self._is_cut:
            # The next reader needs a line of its own.
            line = b"\n" + line
        try:
            if (num_written := file.write(line)) != len(line):
                self._is_cut = self._is_cut or bool(num_written)
                raise OSError("the line was cut")
        except OSError as error:
            return self._failed(file, part, error)
        self._is_cut = False
        if not self._required:
            self._broken = False
        return None

    def _failed(self, file: BinaryIO, part: AuditPart, error: OSError) -> AuditUnavailable:
        """Counts a line that is not in the file. Of consecutive failures the first is logged."""
        if self.metrics is not None:
            self.metrics.count_audit_failure(part)
        reason = error.strerror or str(error)
        if not self._broken:
            log.error("audit_log_failed", path=file.name, record=part.value, error=reason)
        self._broken = True
        return AuditUnavailable(reason)


def _flush(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _WITHOUT_DISK:
            raise
