"""The settings of keys and of what they open."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, Field

from server.settings.keys import KEY_FILE, Key, KeySet, Role, read_key_file, unnamed
from server.settings.types import KeyHashes, NamedKeyHashes, SettingError, Texts

KEY_SETTINGS = ("api_key", "named_api_key", "admin_key", "metrics_key")
"""The settings with the keys that open this server."""

API_KEY_SETTINGS = frozenset({"api_key", "named_api_key", KEY_FILE})
"""The settings that may give a key for inference."""

SECRET_SETTINGS = (*KEY_SETTINGS, "fleet_key")
"""The settings that hold keys: no message shows their values."""

NEVER_EMPTY = (*KEY_SETTINGS, KEY_FILE)
"""The settings that must not be given as an empty text.

Elsewhere that counts as not given, as in compose files. Here it would open the server.
"""


class AccessSettings(BaseModel):
    """Keys, what they open without a restart, and what is recorded of their use."""

    api_key: KeyHashes = Field(
        (), description="key that inference requests must bear (repeatable; best as a variable)"
    )
    named_api_key: NamedKeyHashes = Field(
        {}, description="NAME=KEY: an API key with a name for routing rules (repeatable)"
    )
    admin_key: KeyHashes = Field(
        (), description="key that admin requests must bear (repeatable; best as a variable)"
    )
    metrics_key: KeyHashes = Field(
        (), description="key that opens /metrics and nothing else (repeatable)"
    )
    key_file: str | None = Field(
        None,
        min_length=1,
        description="file with a name, a role and a key on each line; read again on SIGHUP",
    )
    insecure: bool = Field(
        False,
        description="serve everybody who can connect, without an API key, under any host name",
    )
    allowed_local_path: Texts = Field(
        (),
        description="folder below which admin requests may load checkpoints and adapters "
        "(repeatable; default: the models that the settings name)",
    )
    allowed_hub_id: Texts = Field(
        (),
        description="hub id that admin requests may load, such as org/name or org/* "
        "(repeatable; default: none)",
    )
    audit_log: str | None = Field(
        None, description="file to which every admin change is appended as a line of JSON"
    )
    audit_required: bool = Field(
        False, description="refuse an admin change whose record cannot be written to --audit-log"
    )
    console: bool = Field(True, description="serve /console if the extra `console` is installed")

    @cached_property
    def keys_at_start(self) -> KeySet:
        """Every key as it was when these settings were checked. Raises `SettingError`.

        The file may be replaced while a server starts. All that a start decides is decided from
        the same keys: whether the server may be open, which names rules may match, which keys are
        in force.
        """
        return self.read_keys()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, whose keys at the start are those of `update` if it has any."""
        copy = super().model_copy(update=update, deep=deep)
        if not set(NEVER_EMPTY).isdisjoint(update or ()):
            copy.__dict__.pop("keys_at_start", None)
        return copy

    def read_keys(self) -> KeySet:
        """Every key of the settings, and of the key file as it is now. Raises `SettingError`."""
        keys = KeySet()
        for setting, key in self._given_keys():
            _add(keys, key, setting, "")
        if self.key_file is not None:
            file_keys = list(read_key_file(self.key_file))
            for place, key in file_keys:
                _add(keys, key, KEY_FILE, f"{place}: ")
            if not file_keys:
                raise SettingError(KEY_FILE, f"{self.key_file} has no key")
        return keys

    def _given_keys(self) -> Iterator[tuple[str, Key]]:
        """The keys of flags, variables and the YAML file, each with its setting."""
        for name, digest in self.named_api_key.items():
            yield "named_api_key", Key(name, Role.API, digest.get_secret_value())
        roles = {"api_key": Role.API, "admin_key": Role.ADMIN, "metrics_key": Role.METRICS}
        for setting, role in roles.items():
            for digest in getattr(self, setting):
                yield setting, unnamed(digest.get_secret_value(), role)


def _add(keys: KeySet, key: Key, setting: str, place: str) -> None:
    try:
        keys.add(key)
    except ValueError as error:
        raise SettingError(setting, f"{place}{error}") from None
