"""Serve's `user_config`: the fleet's method as a Serve config file declares it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine_adapter.seam.text import short_repr
from server.control.types import DRAIN_TIMEOUT_S, MAX_DRAIN_TIMEOUT_S, OnTimeout, SwitchMode
from server.fleet.replica import FleetSwitch, Way


class UserConfigError(ValueError):
    """A `user_config` that cannot work; the message names the field."""


class UserConfig(BaseModel):
    """A switch of the whole fleet, made once, when a replica first gets this revision."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    revision: int = Field(ge=1, description="raise it with every change: a lower one is ignored")
    spec_method: str = Field(description="a proposer, a policy, primary, backup or none")
    num_speculative_tokens: int | None = Field(None, ge=0)
    mode: SwitchMode = Field(SwitchMode.IMMEDIATE, strict=False)
    timeout_s: float = Field(DRAIN_TIMEOUT_S, gt=0, le=MAX_DRAIN_TIMEOUT_S, allow_inf_nan=False)
    on_timeout: OnTimeout = Field(OnTimeout.FAIL, strict=False)
    spec_policy: dict[str, dict[str, Any]] | None = Field(
        None, description="policy -> its parameters"
    )

    def fleet_switch(self) -> FleetSwitch:
        """The switch."""
        reason = f"revision {self.revision} of user_config"
        way = Way(self.mode, self.timeout_s, self.on_timeout, reason)
        return FleetSwitch(self.spec_method, self.num_speculative_tokens, self.spec_policy, way)


def read_user_config(raw_config: Any) -> UserConfig:
    """The `user_config`. Raises `UserConfigError`."""
    try:
        return UserConfig.model_validate(raw_config)
    except ValidationError as error:
        faults = (
            f"{'.'.join(map(str, fault['loc'])) or 'user_config'}: {fault['msg']}, "
            f"got {short_repr(fault['input'])}"
            for fault in error.errors()
        )
        raise UserConfigError("; ".join(faults)) from None
