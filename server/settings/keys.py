"""The keys of a server: name, role and hash of each. The keys themselves are not kept.

A key file has one key on each line, in three columns:

    # name    role      key, or sha256: and the key's SHA-256 in hex
    team-a    api       sk-3b0c...
    ops       admin     sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    scraper   metrics   sk-77d1...

Empty lines, and lines that begin with `#`, are skipped.
"""

import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from engine_adapter.seam.text import NAME
from server.settings.types import SettingError, digest_of

KEY_FILE = "key_file"
"""The setting that names the file."""

_HASH_PREFIX = "sha256:"
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_NAME_DIGITS = 8


class Role(StrEnum):
    """What a key opens.

    `api`: inference and metrics. `admin`: everything. `metrics`: `/metrics` alone.
    """

    API = "api"
    ADMIN = "admin"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        name: given, or else the first digits of its hash. Keys that follow each other in a
            rotation share a name.
        digest: the key's SHA-256.
    """

    name: str
    role: Role
    digest: bytes = field(repr=False)


class KeySet:
    """The keys that a server accepts. Nothing is added once it is in use."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, Key] = {}
        self._roles: dict[str, Role] = {}

    def __len__(self) -> int:
        return len(self._by_digest)

    def add(self, key: Key) -> None:
        """Raises `ValueError` for a key or a name that has another use already."""
        stored_key = self._by_digest.setdefault(key.digest, key)
        if stored_key != key:
            raise ValueError(f"this key is the {stored_key.role} key {stored_key.name} already")
        role = self._roles.setdefault(key.name, key.role)
        if role is not key.role:
            raise ValueError(f"{key.name} is the name of an {role} key already")

    def find(self, token: bytes) -> Key | None:
        """The key that a token is. Takes the same time for every token."""
        token_digest = digest_of(token)
        matches = [
            k for digest, k in self._by_digest.items() if hmac.compare_digest(token_digest, digest)
        ]
        return matches[0] if matches else None

    def has(self, role: Role) -> bool:
        """Whether any key has this role."""
        return role in self._roles.values()

    def names(self, role: Role) -> frozenset[str]:
        """The names of the keys of this role."""
        return frozenset(name for name, key_role in self._roles.items() if key_role is role)

    @cached_property
    def is_shared(self) -> bool:
        """Whether there are API keys of several names. Read once it is in use."""
        return len(self.names(Role.API)) > 1


def unnamed(digest: bytes, role: Role) -> Key:
    """A key that was given without a name."""
    return Key(digest.hex()[:_NAME_DIGITS], role, digest)


def read_key_file(path: str) -> Iterator[tuple[str, Key]]:
    """The keys of a file, each with the file and the line that it stands on.

    Raises `SettingError`, whose message repeats nothing that could be a key.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except OSError as error:
        raise SettingError(KEY_FILE, f"cannot read {path}: {error.strerror}") from None
    except ValueError:  # not UTF-8, or a path that no file can have
        raise SettingError(KEY_FILE, f"cannot read {path!r} as text in UTF-8") from None
    for number, line in enumerate(lines, 1):
        columns = line.split()
        if columns and not columns[0].startswith("#"):
            place = f"{path}, line {number}"
            try:
                yield place, _key(columns)
            except ValueError as error:
                raise SettingError(KEY_FILE, f"{place}: {error}") from None


def _key(columns: list[str]) -> Key:
    if len(columns) != 3:
        raise ValueError(f"must have a name, a role and a key, but has {len(columns)} columns")
    name, role, secret = columns
    if not NAME.fullmatch(name):
        raise ValueError("the name must have 1 to 64 of A-Za-z0-9._-, a letter or digit first")
    if role not in list(Role):
        raise ValueError(f"the role must be one of {', '.join(Role)}")
    return Key(name, Role(role), _digest(secret))


def _digest(secret: str) -> bytes:
    if not secret.startswith(_HASH_PREFIX):
        return digest_of(secret.encode())
    digits = secret.removeprefix(_HASH_PREFIX)
    if not _HEX.fullmatch(digits):
        raise ValueError(f"{_HASH_PREFIX} must be followed by 64 hex digits")
    digest = bytes.fromhex(digits)
    if digest == digest_of(b""):
        raise ValueError("this is the hash of an empty text, not of a key")
    return digest
