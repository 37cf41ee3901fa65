"""Authorization by bearer keys. Pure ASGI, before a body is read; every path is closed by default.

If API keys are set, every path needs one (or an admin key), except `OPEN_PATHS` and the console's
files. Admin paths need an admin key. If none is set, they answer only direct requests from this
machine, and only if the server listens on a loopback address.
"""

import hashlib
import hmac
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.datastructures import Address, Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.console.pages import is_console_path
from server.control.types import Caller
from server.errors import ApiError, error_response
from server.settings import Settings

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Probed by orchestrators without credentials; they reveal only the server's state."""

ADMIN_PATHS = frozenset(
    {
        "/v1/switch_spec_method",
        "/v1/spec_method",
        "/v1/proposers",
        "/v1/load_proposer",
        "/v1/unload_proposer",
        "/v1/spec_policy",
        "/v1/explain",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    }
)
"""Paths that change or show the server's speculation or models, including later versions'."""

_FORWARDING = ("forwarded", "via", "x-real-ip")


class AuthMiddleware:
    """Passes a request on, or answers 401 or 403.

    Args:
        has_console: the console is served; a browser loads its files before it has a key.
    """

    def __init__(self, app: ASGIApp, settings: Settings, has_console: bool = False) -> None:
        self._app = app
        self._has_console = has_console
        self._api_keys = _hashes((*settings.api_key, *settings.named_api_key.values()))
        self._admin_keys = _hashes(settings.admin_key)
        self._bound_to_loopback = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks HTTP requests. Websockets are not passed on: there are none."""
        if scope["type"] == "http":
            refusal = self._refusal(scope["path"], Headers(scope=scope), scope.get("client"))
            app = self._app if refusal is None else error_response(refusal)
            await app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)

    def _refusal(
        self, path: str, headers: Headers, client: tuple[str, int] | None
    ) -> ApiError | None:
        if path in OPEN_PATHS or (self._has_console and is_console_path(path)):
            return None
        if path in ADMIN_PATHS:
            return self._admin_refusal(headers, client)
        if not self._api_keys or _holds(headers, self._api_keys | self._admin_keys):
            return None
        return _unauthorized("an API key", headers)

    def _admin_refusal(self, headers: Headers, client: tuple[str, int] | None) -> ApiError | None:
        if self._admin_keys:
            if _holds(headers, self._admin_keys):
                return None
            return _unauthorized("an admin key", headers)
        if self._bound_to_loopback and _is_direct(headers, client):
            return None
        message = (
            "No admin key is set, so admin paths answer only direct requests from the server's "
            "own machine to a loopback address. Set one with SPECGATE_ADMIN_KEY or --admin-key."
        )
        return ApiError(403, message, type="permission_error", code="admin_disabled")


def caller(headers: Headers, client: Address | None, settings: Settings) -> Caller:
    """The origin of an authorized admin request, for the audit; the key itself is not shown."""
    who = f"key:{_bearer_hash(headers).hex()[:8]}" if settings.admin_key else "loopback"
    return Caller(who, None if client is None else client.host)


def api_key_name(headers: Headers, settings: Settings) -> str | None:
    """The name of the API key that an authorized request bears, if that key has one."""
    if not settings.named_api_key:
        return None
    given = _bearer_hash(headers)
    names = [
        name
        for name, key in settings.named_api_key.items()
        if hmac.compare_digest(given, _hash(key.get_secret_value().encode()))
    ]
    return names[0] if names else None


def key_owner(headers: Headers, settings: Settings) -> bytes:
    """Who owns what an authorized request stores: its key's hash, empty without API keys.

    Without API keys all clients are one owner, whatever key a client sends.
    """
    has_keys = bool(settings.api_key or settings.named_api_key)
    return _bearer_hash(headers) if has_keys else b""


def _unauthorized(key: str, headers: Headers) -> ApiError:
    message = f"This path needs {key}: `Authorization: Bearer KEY`."
    if "authorization" in headers:
        message += " The given key is not valid."
    return ApiError(
        401,
        message,
        type="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _hashes(keys: Sequence[SecretStr]) -> frozenset[bytes]:
    return frozenset(_hash(key.get_secret_value().encode()) for key in keys)


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _holds(headers: Headers, hashes: frozenset[bytes]) -> bool:
    """Whether the bearer token is one of the keys; takes the same time for any token."""
    scheme = headers.get("authorization", "").partition(" ")[0]
    given = _bearer_hash(headers)
    found = [hmac.compare_digest(given, known) for known in hashes]
    return scheme.lower() == "bearer" and any(found)


def _bearer_hash(headers: Headers) -> bytes:
    token = headers.get("authorization", "").partition(" ")[2]
    # Headers are decoded as Latin-1; this restores the bytes as sent.
    return _hash(token.strip().encode("latin-1"))


def _is_direct(headers: Headers, client: tuple[str, int] | None) -> bool:
    """Whether the request comes from this machine without a proxy or a foreign web page."""
    if client is None or not is_loopback(client[0]):
        return False
    if is_forwarded(headers):
        return False
    origin = headers.get("origin")
    return _names_loopback(f"//{headers.get('host', '')}") and (
        origin is None or _names_loopback(origin)
    )


def is_forwarded(headers: Headers) -> bool:
    """Whether a proxy passed the request on, by its headers."""
    return any(name in _FORWARDING or name.startswith("x-forwarded-") for name in headers)


def _names_loopback(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether an address, or `localhost`, can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
