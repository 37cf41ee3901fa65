"""Who changed what, when and why, and what came of it: the record of every admin change.

The last `REMEMBERED` are kept in memory; all are logged, and appended to a file as JSON lines
where one is given.
"""

import json
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from engine_adapter.interface import SpecMethod

REMEMBERED = 100
"""How many records of either kind are kept in memory."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asked for a change.

    Attributes:
        who: `key:` and a fingerprint of the admin key, or `loopback` where none is set.
        peer: the address of the other end of the connection, if it has one.
    """

    who: str
    peer: str | None


SERVER = Caller("server", None)
"""The server itself."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A switch that was asked for.

    Attributes:
        when: Unix time in seconds at which it was asked for.
        what: the route's last part.
        outcome: an entry of `server.metrics.SWITCH_OUTCOMES`.
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
    mode: str
    reason: str | None
    outcome: str
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
class ProposerRecord:
    """A proposer that was to be loaded or unloaded.

    Attributes:
        when: Unix time in seconds at which it was asked for.
        what: the route's last part.
        proposer: its name.
        outcome: `loaded`, `unloaded`, `refused` (not as things were) or `failed`.
        error: why it did not happen, else `None`.
        took_ms: from the call to its end.
    """

    when: float
    caller: Caller
    what: str
    proposer: str
    outcome: str
    error: str | None
    took_ms: float

    def fields(self) -> dict[str, Any]:
        """The record as logs and files have it, in this order."""
        return {
            "when": _iso(self.when),
            "who": self.caller.who,
            "peer": self.caller.peer,
            "what": self.what,
            "proposer": self.proposer,
            "outcome": self.outcome,
            "error": self.error,
            "took_ms": self.took_ms,
        }


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """A LoRA adapter that was to be loaded or unloaded; as `ProposerRecord`."""

    when: float
    caller: Caller
    what: str
    adapter: str
    outcome: str
    error: str | None
    took_ms: float

    def fields(self) -> dict[str, Any]:
        """The record as logs and files have it, in this order."""
        return {
            "when": _iso(self.when),
            "who": self.caller.who,
            "peer": self.caller.peer,
            "what": self.what,
            "adapter": self.adapter,
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
        self._changes: deque[ProposerRecord] = deque(maxlen=REMEMBERED)
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
    def changes(self) -> tuple[ProposerRecord, ...]:
        """The last proposers that were to be loaded or unloaded, newest first."""
        return tuple(reversed(self._changes))

    def add(self, record: AuditRecord | ProposerRecord | AdapterRecord) -> None:
        """Logs and writes a record, and remembers all but an adapter's.

        Never raises: the change has happened.
        """
        if isinstance(record, AuditRecord):
            self._switches.append(record)
        elif isinstance(record, ProposerRecord):
            self._changes.append(record)
        fields = record.fields()
        log.info("admin_change", **fields)
        if self._file is not None:
            self._write(self._file, json.dumps(fields).encode() + b"\n")

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
