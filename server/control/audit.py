"""Who changed what, when and why, and what came of it: the record of every admin change.

The last `REMEMBERED` are kept in memory; all are logged, and appended to a file as JSON lines
where one is given.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import structlog

from engine_adapter.errors import LoraRefused, ProposerRefused
from engine_adapter.types import SpecMethod
from server.control.types import Caller, LoadOutcome, SwitchMode, SwitchOutcome

REMEMBERED = 100
"""How many records of either kind are kept in memory."""

PROPOSER, ADAPTER = "proposer", "adapter"
"""What can be loaded and unloaded."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A switch that was asked for.

    Attributes:
        when: Unix time in seconds at which it was asked for.
        what: the route's last part.
        error: why it did not happen, else `None`.
        generation: its number; `None` if it did not come as far as the engine.
        in_flight: requests admitted and unfinished when it ended.
        took_ms: from the call to its end.
    """

    when: float
    caller: Caller
    what: str
    previous: SpecMethod
    to: SpecMethod
    mode: SwitchMode
    reason: str | None
    outcome: SwitchOutcome
    error: str | None
    generation: int | None
    in_flight: int
    took_ms: float

    def fields(self) -> dict[str, Any]:
        """The record as logs and files have it, in this order."""
        return {
            "when": _iso(self.when),
            "who": self.caller.who,
            "peer": self.caller.peer,
            "what": self.what,
            "from": _method(self.previous),
            "to": _method(self.to),
            "mode": self.mode,
            "reason": self.reason,
            "outcome": self.outcome,
            "error": self.error,
            "generation": self.generation,
            "in_flight": self.in_flight,
            "took_ms": self.took_ms,
        }


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """A proposer or an adapter that was to be loaded or unloaded.

    Attributes:
        when: Unix time in seconds at which it was asked for.
        what: the route's last part.
        kind: `PROPOSER` or `ADAPTER`.
        name: which one.
        error: why it did not happen, else `None`.
        took_ms: from the call to its end.
    """

    when: float
    caller: Caller
    what: str
    kind: str
    name: str
    outcome: LoadOutcome
    error: str | None
    took_ms: float

    def fields(self) -> dict[str, Any]:
        """The record as logs and files have it, in this order."""
        return {
            "when": _iso(self.when),
            "who": self.caller.who,
            "peer": self.caller.peer,
            "what": self.what,
            self.kind: self.name,
            "outcome": self.outcome,
            "error": self.error,
            "took_ms": self.took_ms,
        }


class Audit:
    """The records, in memory and in a file.

    Args:
        path: where to append; `None` keeps them in memory alone.

    Raises:
        OSError: the file cannot be opened for appending.
    """

    def __init__(self, path: str | None = None) -> None:
        self._switches: deque[AuditRecord] = deque(maxlen=REMEMBERED)
        self._changes: deque[LoadRecord] = deque(maxlen=REMEMBERED)
        # Without a buffer a line that could not be written is not tried again with the next one.
        self._file: BinaryIO | None = None
        if path is not None:
            self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115
        self._broken = False

    @property
    def last(self) -> tuple[AuditRecord, ...]:
        """The last switches, newest first."""
        return tuple(reversed(self._switches))

    @property
    def changes(self) -> tuple[LoadRecord, ...]:
        """The last proposers that were to be loaded or unloaded, newest first."""
        return tuple(reversed(self._changes))

    def add(self, record: AuditRecord | LoadRecord) -> None:
        """Logs and writes a record, and remembers all but an adapter's.

        Never raises: the change has happened.
        """
        if isinstance(record, AuditRecord):
            self._switches.append(record)
        elif record.kind == PROPOSER:
            self._changes.append(record)
        fields = record.fields()
        log.info("admin_change", **fields)
        if self._file is not None:
            self._write(self._file, json.dumps(fields).encode() + b"\n")

    async def recorded(
        self,
        change: Coroutine[Any, Any, T],
        what: str,
        kind: str,
        name: str,
        outcome: LoadOutcome,
        caller: Caller,
    ) -> T:
        """Waits for a load or an unload, and records what came of it.

        The change goes on if its caller is cancelled. `outcome` is that of a success; the others
        are as in `LoadRecord`.
        """

        async def to_its_end() -> T:
            when, begun, came, why = time.time(), time.perf_counter(), outcome, None
            try:
                return await change
            except BaseException as error:
                refused = isinstance(error, ProposerRefused | LoraRefused)
                came = LoadOutcome.REFUSED if refused else LoadOutcome.FAILED
                why = str(error) or type(error).__name__
                raise
            finally:
                took_ms = round((time.perf_counter() - begun) * 1e3, 3)
                self.add(LoadRecord(when, caller, what, kind, name, came, why, took_ms))

        return await asyncio.shield(asyncio.create_task(to_its_end()))

    def close(self) -> None:
        """Closes the file. Safe to call twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write(self, file: BinaryIO, line: bytes) -> None:
        """Appends a line; of failures in a row only the first is logged."""
        try:
            if file.write(line) != len(line):
                raise OSError("the line was cut")
        except OSError as error:
            if not self._broken:
                log.error("audit_log_failed", path=file.name, error=str(error))
            self._broken = True
        else:
            self._broken = False


def _iso(when: float) -> str:
    text = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _method(method: SpecMethod) -> dict[str, str | int]:
    return {
        "spec_method": method.proposer,
        "num_speculative_tokens": method.num_speculative_tokens,
    }
