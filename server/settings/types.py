"""Types of settings: each reads text, as flags and variables have it, or structure, as YAML has."""

import hashlib
import json
import re
from collections.abc import Mapping, Sized
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretBytes

from engine_adapter.seam.text import NAME

_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")


class SettingError(ValueError):
    """A setting that cannot work, found by a check of more than one field.

    Attributes:
        setting: the field's name.
    """

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


class SettingsError(Exception):
    """Settings that cannot work.

    Attributes:
        lines: one for each setting, with its name as the user wrote it.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


def _list(value: Any) -> Any:
    """Splits comma-separated text, as variables have it, into a list."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _none_empty(values: tuple[Sized, ...]) -> tuple[Sized, ...]:
    if not all(map(len, values)):
        raise ValueError("must not be empty")
    return values


def parsed(value: Any) -> Any:
    """Parses JSON text; other values stay. Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at character {error.pos})") from None


def json_object(value: Any) -> dict[str, Any]:
    """Reads JSON text or a mapping; a dash in a key becomes an underscore. Raises `ValueError`."""
    fields = parsed(value)
    if not isinstance(fields, Mapping):
        raise ValueError(f"must be a JSON object, got {fields!r}")
    return {str(key).replace("-", "_"): item for key, item in fields.items()}


def _lora_modules(value: Any) -> Any:
    """Reads `name=path` texts, JSON objects with `name` and `path`, or a mapping."""
    if isinstance(value, str):
        value = parsed(value) if value.lstrip().startswith(("{", "[")) else _list(value)
    if isinstance(value, Mapping) and set(value) != {"name", "path"}:
        return value
    modules: dict[str, Any] = {}
    for item in value if isinstance(value, list | tuple) else [value]:
        name, path = _lora_module(item)
        if name in modules:
            raise ValueError(f"{name!r} is given twice")
        modules[name] = path
    return modules


def _lora_module(item: Any) -> tuple[str, Any]:
    if isinstance(item, str) and not item.lstrip().startswith("{"):
        name, equals, path = item.partition("=")
        if not (name and equals and path):
            raise ValueError(f"must be name=path, got {item!r}")
        return name, path
    fields = parsed(item)
    if not isinstance(fields, Mapping) or set(fields) != {"name", "path"}:
        raise ValueError(f'must be {{"name": ..., "path": ...}}, got {item!r}')
    return str(fields["name"]), fields["path"]


def _hashes(value: Any) -> tuple[bytes, ...]:
    """Reads keys, and returns the hash of each. No message repeats a part of them."""
    return tuple(_hash(item) for item in _list(value))


def _hash(key: Any) -> bytes:
    if not isinstance(key, str):
        raise ValueError("must be text")
    if not key.strip():
        raise ValueError("must not be empty; leave it out to have no such key")
    if "," in key:
        raise ValueError("must have no comma: repeat the flag for several keys")
    return digest_of(key.strip().encode())


def digest_of(key: bytes) -> bytes:
    """The hash under which a key is kept: its SHA-256. A long random key needs no slower one."""
    return hashlib.sha256(key).digest()


def _named_hashes(value: Any) -> Any:
    """Reads `name=key` texts, or a mapping; see `_hashes`."""
    if isinstance(value, Mapping):
        pairs = [(str(name), key) for name, key in value.items()]
    else:
        texts = [item if isinstance(item, str) else "" for item in _list(value)]
        pairs = [(name, key) for name, _, key in (text.partition("=") for text in texts)]
    if not all(NAME.fullmatch(name) and key for name, key in pairs):
        raise ValueError("must be NAME=KEY, with 1 to 64 of A-Za-z0-9._- as NAME")
    hashes = {name: _hash(key) for name, key in pairs}
    if len(hashes) != len(pairs):
        raise ValueError("two keys have the same name")
    return hashes


def _multiplied(value: Any) -> Any:
    """Reads a number with a suffix as vLLM does: a small one is decimal, a capital one binary."""
    match = _SUFFIXED.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    number, suffix = match.groups()
    power = "kmgt".index(suffix.lower()) + 1
    if suffix.isupper():
        if "." in number:
            raise ValueError(f"a number with {suffix} has no decimals; {suffix.lower()} may have")
        return int(number) * 1024**power
    return int(float(number) * 1000**power)


def _json_list(value: Any) -> Any:
    """Reads JSON texts of an object or a list, or a list of objects, into one list."""
    items: list[Any] = []
    for text in value if isinstance(value, list | tuple) else [value]:
        item = parsed(text)
        items += item if isinstance(item, list | tuple) else [item]
    return tuple(items)


Count = Annotated[int, Field(ge=1)]
"""A count, at least 1."""

TokenCount = Annotated[Count, BeforeValidator(_multiplied)]
"""A count of tokens, at least 1; as text also with vLLM's suffixes: 2k is 2000, 2K is 2048."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Seconds; what 0 means is the setting's affair."""

PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Seconds, more than 0."""

Texts = Annotated[tuple[str, ...], BeforeValidator(_list), AfterValidator(_none_empty)]
"""Texts; as one text, separated by commas."""

KeyHashes = Annotated[tuple[SecretBytes, ...], BeforeValidator(_hashes)]
"""The SHA-256 of keys; given as texts, or as one text separated by commas."""

JsonObject = Annotated[dict[str, Any], BeforeValidator(json_object)]
"""A mapping; as text, a JSON object."""

LoraModules = Annotated[dict[str, str], BeforeValidator(_lora_modules)]
"""LoRA adapters by name; as text, `name=path` or JSON objects."""

NamedKeyHashes = Annotated[dict[str, SecretBytes], BeforeValidator(_named_hashes)]
"""The SHA-256 of keys by name; given as `name=key`, separated by commas."""

JsonList = Annotated[tuple[Any, ...], BeforeValidator(_json_list)]
"""A list; as text, JSON objects or a JSON list of them."""
