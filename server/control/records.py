"""Switches, drains and admin changes, as the admin routes, the log and the audit file show them.

Each is one dataclass, from which the response, the log line and the API's schema are made: a field
is declared here and nowhere else. They are dataclasses and not pydantic models because a change
that has happened must be recorded, even with a name that a response could not encode.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from engine_adapter.seam.types import SpecMethod
from server.control.types import LoadOutcome, OnTimeout, PolicyOutcome, SwitchMode, SwitchOutcome


@dataclass(frozen=True, slots=True)
class SpecMethodBody:
    """A proposer's name, or `none`, and its draft length: the JSON form of a `SpecMethod`."""

    spec_method: str
    num_speculative_tokens: int

    @classmethod
    def from_method(cls, method: SpecMethod) -> "SpecMethodBody":
        """The JSON form of `method`."""
        return cls(method.proposer, method.num_speculative_tokens)


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """A switch that happened.

    Attributes:
        waited_ms: from the call to the engine's confirmation.
    """

    previous: SpecMethodBody
    active: SpecMethodBody
    mode: SwitchMode
    generation: int
    fleet_generation: Annotated[int, Field(description="number of the last fleet switch, or 0")]
    in_flight: Annotated[
        int, Field(description="requests admitted and unfinished when it took effect")
    ]
    aborted: Annotated[int, Field(description="requests that its drain ended")]
    waited_ms: float


@dataclass(frozen=True, slots=True)
class Drain:
    """A drain that waits for admitted requests to end.

    Attributes:
        waited_ms: how long it has run.
    """

    to: SpecMethodBody
    held: Annotated[int, Field(description="requests that wait for it")]
    waited_ms: float
    timeout_s: float
    on_timeout: OnTimeout


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """A policy, and what it does.

    Attributes:
        state: what it did some seconds ago; its fields depend on the policy.
    """

    name: str
    parameters: dict[str, Any]
    state: dict[str, Any]
    suspended: Annotated[bool, Field(description="its guard holds it at plain decoding")]
    decisions: Annotated[
        dict[str, int],
        Field(description="proposer, or none: rows planned so in the last `window_s` seconds"),
    ]


@dataclass(frozen=True, slots=True)
class AdminRecord:
    """An admin change that was requested, whether or not it happened.

    Attributes:
        when: the time of the request.
        what: the last part of the route.
    """

    when: Annotated[float, Field(description="Unix time in seconds")]
    who: Annotated[str, Field(description="key: and a fingerprint of the admin key, or loopback")]
    peer: Annotated[str | None, Field(description="the caller's address")]
    what: str


@dataclass(frozen=True, slots=True)
class Intent(AdminRecord):
    """A change that is about to be made. Only the audit file has it, and only if it is required.

    The record of the change follows, with the same `when`, `who` and `what`.

    Attributes:
        change: what is to be changed; its fields depend on `what`.
    """

    change: dict[str, Any]
    reason: str | None = None
    outcome: Literal["intended"] = "intended"


@dataclass(frozen=True, slots=True)
class SwitchRecord(AdminRecord):
    """A requested switch.

    Attributes:
        error: why it did not happen.
        took_ms: from the call to its end.
    """

    previous: Annotated[SpecMethodBody, Field(serialization_alias="from")]
    to: SpecMethodBody
    mode: SwitchMode
    generation: Annotated[
        int | None, Field(description="null if the switch did not reach the engine")
    ]
    fleet_generation: Annotated[
        int | None, Field(description="the fleet switch that it belongs to; null without one")
    ]
    reason: str | None
    outcome: SwitchOutcome
    error: str | None
    in_flight: Annotated[int, Field(description="requests admitted and unfinished when it ended")]
    aborted: Annotated[int, Field(description="requests that its drain ended")]
    took_ms: float


@dataclass(frozen=True, slots=True)
class ProposerRecord(AdminRecord):
    """A requested load or unload of a proposer."""

    proposer: str
    outcome: LoadOutcome
    error: str | None
    took_ms: float


@dataclass(frozen=True, slots=True)
class LoraRecord(AdminRecord):
    """A requested load or unload of a LoRA adapter."""

    adapter: str
    outcome: LoadOutcome
    error: str | None
    took_ms: float


@dataclass(frozen=True, slots=True)
class PolicyRecord(AdminRecord):
    """A requested change of policies or routing rules that was valid.

    Attributes:
        policies: policy -> the parameters that were given; `None` leaves all as they were.
        rules: the rules that were given; `None` leaves them as they were.
        warnings: what is likely a mistake in the rules.
    """

    policies: Annotated[
        dict[str, Any] | None, Field(description="null if the change names no policy")
    ]
    rules: Annotated[
        list[dict[str, Any]] | None, Field(description="null if the change has no rules")
    ]
    warnings: list[str]
    reason: str | None
    outcome: PolicyOutcome
    error: str | None
    took_ms: float


Record = SwitchRecord | ProposerRecord | LoraRecord | PolicyRecord

_RECORD: TypeAdapter[Record | Intent] = TypeAdapter(Record | Intent)


def log_fields(record: Record | Intent) -> dict[str, Any]:
    """The record's fields as the log and the audit file have them, with the time in ISO 8601."""
    when = datetime.fromtimestamp(record.when, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, Any] = _RECORD.dump_python(record, mode="json", by_alias=True)
    return fields | {"when": when.replace("+00:00", "Z")}
