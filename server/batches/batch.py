"""`Batch`: a batch as its record has it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from server.batches.folder import Kind, new_id
from server.batches.lines import Tokens
from server.schema.batches import BatchRequest

WINDOW_S = 24 * 3600
"""The seconds of the only `completion_window`."""


class Status(StrEnum):
    """OpenAI's statuses of a batch."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED = frozenset({Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED})


@dataclass(slots=True)
class Batch:
    """A batch. It changes on the event loop only.

    Attributes:
        owner: who may use it; see `server.http.auth.key_owner`.
        output_file_id, error_file_id: ids of the files that it writes; they are files once it has
            ended, and only if they have a line.
        output_lifetime_s: the life of these files that its client asks for.
        created_at, expires_at: Unix times in seconds.
        times: status -> the Unix time at which it was reached.
        faults: why it has failed: `code`, `message`, `line` and `param` of each.
        total, completed, failed: lines; those answered with status 200; those that have failed.
        tokens: of the completed ones.
    """

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    output_file_id: str
    error_file_id: str
    output_lifetime_s: int | None
    metadata: dict[str, str] | None
    created_at: int
    expires_at: int
    status: Status = Status.VALIDATING
    times: dict[str, int] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0
    completed: int = 0
    failed: int = 0
    has_output: bool = False
    has_errors: bool = False
    tokens: Tokens = field(default_factory=Tokens)

    @classmethod
    def from_request(cls, owner: str, request: BatchRequest, now_s: int) -> "Batch":
        """A new batch."""
        expiry = request.output_expires_after
        return cls(
            id=new_id(Kind.BATCH),
            owner=owner,
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            output_file_id=new_id(Kind.FILE),
            error_file_id=new_id(Kind.FILE),
            output_lifetime_s=None if expiry is None else expiry.seconds,
            metadata=request.metadata,
            created_at=now_s,
            expires_at=now_s + WINDOW_S,
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Batch":
        """The batch of a record. Raises `TypeError` or `ValueError` for another record."""
        tokens, status = Tokens(**record["tokens"]), Status(record["status"])
        return cls(**{**record, "tokens": tokens, "status": status})

    def record(self) -> dict[str, Any]:
        """Its record."""
        return asdict(self)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self.status in ENDED

    @property
    def file_ids(self) -> tuple[str, str, str]:
        """The files that it needs until it has ended."""
        return self.input_file_id, self.output_file_id, self.error_file_id

    def reach(self, status: Status, now_s: int) -> None:
        """Gives it a status."""
        self.status = status
        self.times[status] = now_s
