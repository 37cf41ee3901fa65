"""The audit: a record of every admin change, with its caller, reason and outcome.

The last `REMEMBERED` are kept in memory. All are logged and, if a file is given, appended to it
as JSON lines.
"""

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, BinaryIO, TypeVar

import structlog

from engine_adapter.errors import LoraRefused, ProposerRefused
from engine_adapter.text import cut
from server.control.allowed_models import ModelNotAllowed
from server.control.records import (
    LoraRecord,
    PolicyRecord,
    ProposerRecord,
    Record,
    SwitchRecord,
    log_fields,
)
from server.control.types import Caller, LoadOutcome
from server.text import replace_surrogates

REMEMBERED = 100
"""How many records of switches, of proposers and of policies are kept in memory."""

MAX_ERROR = 500
"""The most characters of an error's message that a record keeps."""

_REFUSALS = (ProposerRefused, LoraRefused, ModelNotAllowed)

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

    Raises:
        OSError: the file cannot be opened for appending.
    """

    def __init__(self, path: str | None = None) -> None:
        self._switches: deque[SwitchRecord] = deque(maxlen=REMEMBERED)
        self._changes: deque[ProposerRecord] = deque(maxlen=REMEMBERED)
        self._policy_changes: deque[PolicyRecord] = deque(maxlen=REMEMBERED)
        # Without a buffer, a line that could not be written is not retried with the next one.
        self._file: BinaryIO | None = None
        if path is not None:
            self._file = open(path, "ab", buffering=0, opener=_private)  # noqa: SIM115
        self._broken = False

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
            self._write(self._file, json.dumps(fields).encode() + b"\n")

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

        The change continues if its caller is cancelled.
        """

        async def run() -> T:
            when, begun = time.time(), time.perf_counter()
            outcome, message = success, None
            try:
                return await change
            except BaseException as error:
                refused = isinstance(error, _REFUSALS)
                outcome = LoadOutcome.REFUSED if refused else LoadOutcome.FAILED
                message = cut(replace_surrogates(str(error)), MAX_ERROR) or type(error).__name__
                raise
            finally:
                took_ms = round((time.perf_counter() - begun) * 1e3, 3)
                who, peer = caller.who, caller.peer
                self.add(kind(when, who, peer, what, name, outcome, message, took_ms))

        return await asyncio.shield(asyncio.create_task(run()))

    def close(self) -> None:
        """Closes the file. Safe to call twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write(self, file: BinaryIO, line: bytes) -> None:
        """Appends a line. Of consecutive failures only the first is logged."""
        try:
            if file.write(line) != len(line):
                raise OSError("the line was cut")
        except OSError as error:
            if not self._broken:
                log.error("audit_log_failed", path=file.name, error=str(error))
            self._broken = True
        else:
            self._broken = False
