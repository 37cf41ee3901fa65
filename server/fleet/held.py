"""A fleet switch as the server that is reserved for it keeps it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from server.control.attempt import Attempt
from server.control.policy_admin import PolicyChange
from server.control.records import SwitchResult
from server.control.types import Caller
from server.fleet.replica import Prepared, ReplicaState


@dataclass(slots=True, eq=False)
class Held:
    """The fleet switch that the server is reserved for, or that it took part in last.

    Attributes:
        policies: policy -> the parameters that it sets.
        changed: the change of the policies, once it is made.
        lease: ends the reservation.
        generation, committing: of the commit, once there is one.
        num_waiting: callers that wait for the commit.
        undoing: the roll back, once there is one; all its callers wait for the same.
    """

    switch_id: str
    caller: Caller
    prepared: Prepared
    attempt: Attempt
    policies: Mapping[str, Mapping[str, Any]]
    changed: PolicyChange | None = None
    lease: asyncio.TimerHandle | None = None
    generation: int = 0
    committing: "asyncio.Task[SwitchResult] | None" = None
    num_waiting: int = 0
    undoing: "asyncio.Task[ReplicaState] | None" = None

    def stop_lease(self) -> None:
        """Lets the reservation last until it is released."""
        if self.lease is not None:
            self.lease.cancel()
