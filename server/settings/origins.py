"""The origins of web pages that a browser may let call this server."""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator

EVERY_ORIGIN = "*"
"""Allows every web page."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*", re.IGNORECASE)
_HOST = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_EXAMPLE = "an origin is a scheme, a host and perhaps a port, such as http://127.0.0.1:3000"


def _split(value: Any) -> Any:
    """Reads texts: one origin each, several with commas, or a JSON list as vLLM's flag has it."""
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"must be a list of origins; {_EXAMPLE}")
    origins: list[Any] = []
    for text in [value] if isinstance(value, str) else value:
        if not isinstance(text, str):
            origins.append(text)
        elif text.lstrip().startswith("["):
            origins += _json_list(text)
        else:
            origins += [part.strip() for part in text.split(",")]
    return tuple(origins)


def _json_list(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at character {error.pos})") from None


def _checked(origins: Sequence[str]) -> tuple[str, ...]:
    if EVERY_ORIGIN in origins and len(origins) > 1:
        raise ValueError("* allows every origin already; leave the other ones out")
    return tuple(dict.fromkeys(map(_origin, origins)))


def _origin(text: str) -> str:
    """The origin as browsers send it: in lower case and without the scheme's default port."""
    if text == EVERY_ORIGIN:
        return text
    if text == "null":
        raise ValueError("null is the origin of many unrelated pages, so it cannot be allowed")
    scheme, separator, address = text.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise ValueError(f"{text!r} has no scheme; {_EXAMPLE}")
    if "@" in address:
        raise ValueError(f"an origin has no user and no password; {_EXAMPLE}")
    if re.search(r"[/?#\\]", address):
        raise ValueError(f"{text!r} has more than an origin, if only a slash; {_EXAMPLE}")
    if "*" in address:
        raise ValueError(f"{text!r} has a wildcard; name each origin, or allow all with *")
    return _with_port(text, scheme.lower(), address.lower())


def _with_port(text: str, scheme: str, address: str) -> str:
    try:
        port = urlsplit(f"//{address}").port
    except ValueError as error:
        raise ValueError(f"{text!r} is not an origin: {error}") from None
    host = address if address.endswith("]") else re.sub(r":\d*$", "", address)
    if not _HOST.fullmatch(host):
        raise ValueError(f"{text!r} has no host in ASCII letters; {_EXAMPLE}")
    if port is None or port == _DEFAULT_PORTS.get(scheme):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{port}"


Origins = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_checked)]
"""Origins; as text, separated by commas or a JSON list. `*` is every origin."""
