"""Texts of a request that identify something: their limits, which are OpenAI's where it has one.

An identifier that OpenAI does not limit may have `MAX_ID` characters.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from engine_adapter.seam.text import short_repr
from server.errors import InvalidField
from server.schema.bounds import too_many
from server.text import TOO_LONG

MAX_ID = 512
"""The most characters of an identifier for which OpenAI documents no limit."""

MAX_CHARS: Mapping[str, int] = {
    "user": MAX_ID,
    "safety_identifier": 128,
    "prompt_cache_key": 64,
    "service_tier": MAX_ID,
}
"""Fields of all requests -> the most characters. Only `/v1/responses` shows them again."""

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""OpenAI's limits of `metadata`: pairs, and characters of a key and of a value."""

Id = Annotated[str, Field(max_length=MAX_ID)]
"""The id of a call, of another response, or the name of who speaks."""

ItemId = Annotated[str, Field(max_length=64)]
"""The id of an item of `/v1/responses`."""

User = Annotated[str, Field(max_length=MAX_CHARS["user"])]
SafetyIdentifier = Annotated[str, Field(max_length=MAX_CHARS["safety_identifier"])]
CacheKey = Annotated[str, Field(max_length=MAX_CHARS["prompt_cache_key"])]


def _metadata_fault(pairs: Mapping[str, Any]) -> str | None:
    """What is too large in `metadata`, as the predicate of a message."""
    if len(pairs) > MAX_METADATA:
        return too_many("pairs", MAX_METADATA, len(pairs))
    for key, value in pairs.items():
        if len(key) > MAX_METADATA_KEY:
            chars = too_many("characters", MAX_METADATA_KEY, len(key))
            return f"the key {short_repr(key)} {chars}"
        if isinstance(value, str) and len(value) > MAX_METADATA_VALUE:
            chars = too_many("characters", MAX_METADATA_VALUE, len(value))
            return f"the value of {short_repr(key)} {chars}"
    return None


def _check_metadata(pairs: dict[str, str]) -> dict[str, str]:
    if (fault := _metadata_fault(pairs)) is not None:
        raise ValueError(fault)
    return pairs


Metadata = Annotated[dict[str, str], AfterValidator(_check_metadata)]
"""Pairs that a client stores with a response."""


def check_lengths(fields: Mapping[str, Any]) -> None:
    """Raises `InvalidField` for one of these fields that is too long.

    For completions and chats, where they have no effect: values of another type are let pass.
    """
    for name, maximum in MAX_CHARS.items():
        value = fields.get(name)
        if isinstance(value, str) and len(value) > maximum:
            reason = too_many("characters", maximum, len(value))
            raise InvalidField(name, f"{name}: {reason}", TOO_LONG)
    pairs = fields.get("metadata")
    if isinstance(pairs, dict) and (fault := _metadata_fault(pairs)) is not None:
        raise InvalidField("metadata", f"metadata: {fault}")
