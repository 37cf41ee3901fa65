"""Bodies of the three calls of a fleet switch. Unknown fields and other types are refused."""

from typing import Annotated, Any

from pydantic import Field

from server.fleet.replica import LEASE_S, MAX_GENERATION, MAX_LEASE_S, Order
from server.schema.admin import SwitchRequest
from server.schema.base import Strict

SwitchId = Annotated[
    str,
    Field(
        pattern="^[A-Za-z0-9_-]{1,64}$",
        description="the coordinator's name for the switch, the same at every replica",
    ),
]


class PrepareRequest(SwitchRequest):
    """`POST /v1/prepare_switch`: the fields of a switch, and those of its fleet."""

    switch_id: SwitchId
    lease_s: float = Field(
        LEASE_S,
        gt=0,
        le=MAX_LEASE_S,
        allow_inf_nan=False,
        description="seconds that the server stays reserved without a commit",
    )
    policies: dict[str, dict[str, Any]] | None = Field(
        None, description="policy -> its parameters, set with the method"
    )

    def order(self) -> Order:
        """The switch. Raises `InvalidField` if it names no method, or two different ones."""
        request = self.method_request()
        return Order(
            request.proposer,
            request.num_speculative_tokens,
            self.mode,
            self.timeout_s,
            self.after_timeout(),
            self.reason,
            self.policies,
        )


class CommitRequest(Strict):
    """`POST /v1/commit_switch`."""

    switch_id: SwitchId
    generation: int = Field(
        ge=1, le=MAX_GENERATION, description="the fleet's number: above that of every replica"
    )


class RollbackRequest(Strict):
    """`POST /v1/rollback_switch`."""

    switch_id: SwitchId
    generation: int | None = Field(
        None,
        ge=1,
        le=MAX_GENERATION,
        description="the number to take; null if no replica was told to commit",
    )
