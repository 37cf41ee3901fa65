"""What a coordinator and a replica say to each other: plain, frozen, without an engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field

from server.control.records import SpecMethodBody, SwitchResult
from server.control.types import DRAIN_TIMEOUT_S, OnTimeout, SwitchMode
from server.fleet.desired import DesiredState, Policies


@dataclass(frozen=True, slots=True)
class Way:
    """How a replica goes to a state: the fields of a switch."""

    mode: str = SwitchMode.NEW_REQUESTS
    timeout_s: float = DRAIN_TIMEOUT_S
    on_timeout: OnTimeout = OnTimeout.FAIL
    reason: str | None = "as the fleet has it"


FOLLOWING = Way()
"""How a server goes to a state that nobody told it, or that it lagged behind."""


@dataclass(frozen=True, slots=True)
class FleetSwitch:
    """A requested switch of the fleet.

    Attributes:
        speculative_model: a name as in the API; `None` is plain decoding.
        policies: policy -> its parameters; `None` leaves them.
    """

    speculative_model: str | None
    num_speculative_tokens: int | None = None
    policies: Policies | None = None
    way: Way = Way(SwitchMode.IMMEDIATE, reason=None)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a replica refuses, lags or does not answer: message, HTTP status and code of the API."""

    message: str
    status: int = 503
    code: str | None = None


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """A server as a replica of a fleet."""

    generation: Annotated[int, Field(description="number of the last fleet switch made here, or 0")]
    switching: Annotated[bool, Field(description="a switch runs")]
    desired: Annotated[
        DesiredState | None, Field(description="what it should have; null before the first")
    ]
    lag: Annotated[Obstacle | None, Field(description="why it does not have that; null if it has")]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a replica would do with a switch of the fleet.

    Attributes:
        active: the method that it has.
        to: the method that it would have, or why it never can.
    """

    active: SpecMethodBody
    to: SpecMethodBody | Obstacle
    fleet: FleetStatus


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a replica has.

    Attributes:
        switch: the switch to the state that it was told; null if it lags, knows a larger state,
            or was told none.
    """

    active: SpecMethodBody
    switch: SwitchResult | None
    fleet: FleetStatus


class Fleet(Protocol):
    """All replicas, as a coordinator reaches them: the answers by the replicas' names."""

    async def check(self, fleet_switch: FleetSwitch) -> Mapping[str, Checked | Obstacle]:
        """See `Member.check`."""
        ...

    async def set(self, desired: DesiredState, way: Way) -> Mapping[str, ReplicaState | Obstacle]:
        """See `Member.set`."""
        ...
