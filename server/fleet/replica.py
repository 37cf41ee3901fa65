"""What the coordinator of a fleet switch and a replica say to each other.

A switch has two phases. *Prepare*: every replica checks that the switch is possible, and reserves
itself for it: for the time of a *lease*, no other switch begins there. *Commit*: every replica
switches and takes the *fleet generation* of the switch, a number that is larger than that of any
replica. *Roll back* ends the reservation or, after a commit, restores what was before.

Everything here can be sent between processes: plain, frozen, without an engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Protocol

from pydantic import Field

from server.control.records import SpecMethodBody, SwitchResult
from server.control.types import DRAIN_TIMEOUT_S, OnTimeout, SwitchMode

LEASE_S = 30.0
"""How long a replica stays reserved without a commit, in seconds."""

MAX_LEASE_S = 300.0
"""The longest lease, in seconds: so long can a dead coordinator keep other switches out."""

MAX_GENERATION = 2**53 - 1
"""The largest fleet generation: metrics and readers of JSON have no larger number exactly."""

Generation = Annotated[int, Field(ge=0, le=MAX_GENERATION)]
"""A fleet generation, wherever it comes from outside: a larger one is refused."""


@dataclass(frozen=True, slots=True)
class Order:
    """The switch that every replica is to make; the fields are those of a switch of one server.

    Attributes:
        speculative_model: a name as in the API; `None` is plain decoding.
        policies: policy -> its parameters, set before the method; `None` leaves them.
    """

    speculative_model: str | None
    num_speculative_tokens: int | None = None
    mode: str = SwitchMode.IMMEDIATE
    timeout_s: float = DRAIN_TIMEOUT_S
    on_timeout: OnTimeout = OnTimeout.FAIL
    reason: str | None = None
    policies: Mapping[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A replica that is reserved for a switch.

    Attributes:
        fleet_generation: the one that it has now.
        active: the method that it has now.
        to: the method that it will have.
    """

    fleet_generation: Generation
    active: SpecMethodBody
    to: SpecMethodBody


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a replica has.

    Attributes:
        fleet_generation: that of the last fleet switch; 0 before the first.
        is_switching: a switch runs there, or the replica is reserved for one.
        policies: policy -> its parameters, of those that fleet switches have set.
        kept_policies: only after a roll back: those that it has left alone, because they were
            changed at this replica after the commit.
    """

    fleet_generation: Generation
    active: SpecMethodBody
    is_switching: bool = False
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kept_policies: tuple[str, ...] = ()


class ReplicaRefused(Exception):
    """A replica answers that it does not do what it is asked; it keeps what it has.

    Attributes:
        code: the API's code of the reason, or `None`.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class ReplicaUnreachable(Exception):
    """A replica does not answer: what it has is not known."""


class Replica(Protocol):
    """A replica, as a coordinator reaches it. Every call raises one of the two errors above.

    A call that is cancelled may have reached the replica. A drain whose commit is cancelled should
    end, as it does when the caller of `POST /v1/commit_switch` closes the connection.
    """

    @property
    def name(self) -> str:
        """How reports name it; no other replica has this name."""
        ...

    async def prepare(self, switch_id: str, order: Order, lease_s: float) -> Prepared:
        """Checks that the switch is possible and reserves the replica for `lease_s` seconds."""
        ...

    async def commit(self, switch_id: str, generation: int) -> SwitchResult:
        """Makes the switch that was prepared. Refused after the lease, and with an old number."""
        ...

    async def rollback(self, switch_id: str, generation: int | None) -> ReplicaState:
        """Ends the reservation; if the replica has switched, restores what it had before.

        Safe to call twice, and for a switch that the replica does not know.

        Args:
            generation: the number that the replica takes; `None` if no replica was told to commit.
        """
        ...

    async def state(self) -> ReplicaState:
        """What the replica has now."""
        ...


class ReplicaOutcome(StrEnum):
    """What a fleet switch did to one replica.

    `switched`: it has the new method. `refused`: it has refused, and keeps what it had.
    `unchanged`: another has refused, and it keeps what it had. `restored`: it has, or was about
    to have, the new method, and was switched back. `unknown`: it does not answer, or could not be
    switched back.
    """

    SWITCHED = "switched"
    REFUSED = "refused"
    UNCHANGED = "unchanged"
    RESTORED = "restored"
    UNKNOWN = "unknown"


class FleetOutcome(StrEnum):
    """The end of a fleet switch.

    `switched`: every replica has the new method. `unchanged`: nothing has changed anywhere.
    `rolled_back`: every replica has what it had before. `partial`: the replicas that the report
    names as unknown may have another method than the others.
    """

    SWITCHED = "switched"
    UNCHANGED = "unchanged"
    ROLLED_BACK = "rolled_back"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica after a fleet switch.

    Attributes:
        previous, active: before and after; `None` if not known.
        fleet_generation: the one that it has; `None` if not known.
        in_flight: admitted and unfinished requests when it switched; `None` if it has not.
        aborted: requests that its drain ended; `None` if it has not switched.
        error, code: why it has not switched, as the replica says.
        took_ms: of its calls together.
    """

    replica: str
    outcome: ReplicaOutcome
    previous: SpecMethodBody | None
    active: SpecMethodBody | None
    fleet_generation: int | None
    in_flight: int | None
    error: str | None
    code: str | None
    took_ms: float
    aborted: int | None = None


@dataclass(frozen=True, slots=True)
class FleetReport:
    """A fleet switch that has ended.

    Attributes:
        fleet_generation: that of the replicas afterwards; `None` if nothing has changed.
        prepare_ms, commit_ms, took_ms: until all were prepared, from then until all had switched,
            and all, with a roll back if there was one.
    """

    switch_id: str
    outcome: FleetOutcome
    fleet_generation: int | None
    error: str | None
    replicas: tuple[ReplicaReport, ...]
    prepare_ms: float
    commit_ms: float
    took_ms: float

    @property
    def unknown(self) -> tuple[str, ...]:
        """The replicas of which it is not known what they have, or that have something else."""
        return tuple(r.replica for r in self.replicas if r.outcome == ReplicaOutcome.UNKNOWN)
