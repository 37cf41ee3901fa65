"""The settings of keys and of what they open."""

from pydantic import BaseModel, Field

from server.settings.types import NamedSecrets, Secrets


class AccessSettings(BaseModel):
    """Keys, and what is recorded of their use."""

    api_key: Secrets = Field(
        (), description="key that inference requests must bear (repeatable; best as a variable)"
    )
    named_api_key: NamedSecrets = Field(
        {}, description="NAME=KEY: an API key with a name for routing rules (repeatable)"
    )
    admin_key: Secrets = Field(
        (), description="key that admin requests must bear (repeatable; best as a variable)"
    )
    audit_log: str | None = Field(
        None, description="file to which every admin change is appended as a line of JSON"
    )
    console: bool = Field(True, description="serve /console if the extra `console` is installed")
