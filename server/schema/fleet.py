"""Bodies of the two calls of a fleet switch. Unknown fields and other types are refused."""

from typing import Annotated, Any

from pydantic import Field

from server.fleet.desired import DesiredState, Generation
from server.fleet.replica import FleetSwitch
from server.schema.admin import SwitchRequest, SwitchWay

_Policies = dict[str, dict[str, Any]]


class CheckRequest(SwitchRequest):
    """`POST /v1/check_switch`: the fields of a switch, and policies."""

    policies: _Policies | None = Field(
        None, description="policy -> its parameters, set with the method"
    )

    def fleet_switch(self) -> FleetSwitch:
        """The switch. Raises `InvalidField` if it names no method, or two different ones."""
        request = self.method_request()
        k = request.num_speculative_tokens
        return FleetSwitch(request.proposer, k, self.policies, self.way())


class FleetMethodRequest(SwitchWay):
    """`PUT /v1/fleet_method`: a state, and how the server goes to it."""

    generation: Generation
    spec_method: str = Field(description="a proposer, a policy or none")
    num_speculative_tokens: Annotated[int, Field(ge=0)]
    policies: _Policies = Field(
        {}, description="policy -> its parameters, of all that switches of the fleet have set"
    )
    revision: int = Field(0, ge=0, description="of the last `user_config` of Ray Serve in it")

    def desired(self) -> DesiredState:
        """The state."""
        k = self.num_speculative_tokens
        return DesiredState(self.generation, self.spec_method, k, self.policies, self.revision)
