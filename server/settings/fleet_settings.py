"""The settings of a server that is one of several replicas."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, Field, SecretStr, model_validator

from server.fleet.addresses import check_url
from server.settings.types import Seconds, SettingError, Texts


def _urls(values: tuple[str, ...]) -> tuple[str, ...]:
    for url in values:
        try:
            check_url(url)
        except ValueError as error:
            raise ValueError(f"{url!r} cannot be used: {error}") from None
    return values


class FleetSettings(BaseModel):
    """Where a replica finds the method that its fleet has."""

    fleet_peers: Annotated[Texts, AfterValidator(_urls)] = Field(
        (),
        description="URL of other replicas, which are asked for the method in force; a name stands "
        "for all its addresses (repeatable)",
    )
    fleet_key: SecretStr | None = Field(
        None, description="admin key to ask them with (best as a variable; the first of several)"
    )
    fleet_state: str | None = Field(
        None, description="file of `specgate switch --write-state` with the method in force"
    )
    fleet_poll_s: Seconds = Field(
        30, description="mean seconds between two questions to a peer; 0 asks at the start only"
    )

    @model_validator(mode="after")
    def _check_fleet(self) -> Self:
        key = None if self.fleet_key is None else self.fleet_key.get_secret_value()
        if key is not None and not key.strip():
            raise SettingError("fleet_key", "must not be empty; leave it out to ask without a key")
        if key is not None and not key.isprintable():
            raise SettingError("fleet_key", "the key has a control character")
        if self.fleet_key is not None and not self.fleet_peers:
            raise SettingError("fleet_key", "needs --fleet-peers")
        return self
