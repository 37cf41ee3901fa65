"""What every replica of a fleet should have: one state, the largest of all that were set.

Two states are never equal in rank and different in content, so replicas that have heard of the
same states agree, in whatever order, and however often, they have heard of them: a register whose
last writer wins (Shapiro et al., "A comprehensive study of Convergent and Commutative Replicated
Data Types", 2011, section 3.2.1). No clock has a part in the order.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from engine_adapter.policies.names import policy_name
from server.control.method_names import MethodRequest
from server.control.records import SpecMethodBody
from server.control.types import NO_FLEET, FleetRank

MAX_GENERATION = 2**53 - 1
"""The largest generation: metrics and readers of JSON have no larger number exactly."""

Generation = Annotated[
    int, Field(ge=1, le=MAX_GENERATION, description="above that of every earlier state")
]


Policies = Mapping[str, Mapping[str, Any]]
"""Policy -> its parameters."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The method and the policies that every replica should have.

    Attributes:
        policies: those that switches of the fleet have set.
        revision: of the last `user_config` of Ray Serve that is in it; 0 without.
    """

    generation: Generation
    spec_method: str
    num_speculative_tokens: int
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    revision: int = 0

    @property
    def rank(self) -> FleetRank:
        """Its place among all states. Of two with the same number, the text of one is larger."""
        content = [self.spec_method, self.num_speculative_tokens, self.policies, self.revision]
        return FleetRank(self.generation, json.dumps(content, sort_keys=True))

    @property
    def method_request(self) -> MethodRequest:
        """The method, as a switch asks for it."""
        k = self.num_speculative_tokens or None
        return MethodRequest(self.spec_method, k, True, "spec_method", "num_speculative_tokens")


def rank_of(state: DesiredState | None) -> FleetRank:
    """The rank of a state, or that below all."""
    return NO_FLEET if state is None else state.rank


def next_state(
    base: DesiredState | None, method: SpecMethodBody, policies: Policies, revision: int = 0
) -> DesiredState:
    """The state after `base`: another method, other parameters of these policies."""
    # A policy has several names; one that is unknown was refused by a check, or is by a replica.
    merged_policies = {policy_name(name) or name: dict(policies[name]) for name in policies}
    if base is not None:
        merged_policies, revision = base.policies | merged_policies, max(base.revision, revision)
    generation, k = rank_of(base).generation + 1, method.num_speculative_tokens
    return DesiredState(generation, method.spec_method, k, merged_policies, revision)


_STATE = TypeAdapter(DesiredState)


def read_state(path: str) -> DesiredState | None:
    """The state in a file that `specgate switch --write-state` wrote; `None` without a file.

    Raises `ValueError` for a file with anything else, `OSError` for one that cannot be read.
    """
    try:
        return _STATE.validate_json(Path(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ValueError(f"{path} does not have the state of a fleet: {reason}") from None


def state_json(state: DesiredState) -> bytes:
    """The content of a state file."""
    return _STATE.dump_json(state, indent=2) + b"\n"
