"""Authorization by bearer keys. Pure ASGI, before a body is read; every path is closed by default.

If API keys are set, every path needs one (or an admin key), except `OPEN_PATHS` and the console's
files. Admin paths need an admin key. Without any key, a server on a loopback address answers those
who name it so, and its admin paths answer direct requests from this machine.

The functions below say whose an authorized request is. They read what the middleware has found, so
a key that is replaced meanwhile changes nothing for requests in flight.
"""

from collections.abc import Collection

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.console.pages import is_console_path
from server.control.types import Caller
from server.errors import ApiError, NotFound, error_response
from server.http.direct import indirect, is_loopback, names_loopback
from server.http.keyring import Keyring
from server.settings import Settings
from server.settings.keys import Key, Role
from server.text_threads import texts_of

OPEN_PATHS = frozenset({"/health", "/ping", "/ready"})
"""Probed by orchestrators without credentials; they reveal only the server's state."""

METRICS_PATH = "/metrics"
"""The one path that a metrics key opens."""

FLEET_PATH = "/v1/fleet"
"""The admin path that only a replica under Ray Serve has."""

ADMIN_PATHS = frozenset(
    {
        "/v1/switch_spec_method",
        "/v1/check_switch",
        "/v1/fleet_method",
        "/v1/spec_method",
        "/v1/proposers",
        "/v1/load_proposer",
        "/v1/unload_proposer",
        "/v1/spec_policy",
        "/v1/explain",
        "/tokenizer_info",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        FLEET_PATH,
    }
)
"""Paths that change or show the server's speculation or models, including later versions'."""

ANTHROPIC_KEY = "x-api-key"
"""The header in which Anthropic's clients send a key."""

_KEY = "specgate.key"
"""The entry of an ASGI scope with the key that opened its path."""

_INFERENCE_ROLES = (Role.API, Role.ADMIN)

_A_KEY = {Role.API: "an API key", Role.ADMIN: "an admin key", Role.METRICS: "a metrics key"}


class AuthMiddleware:
    """Passes a request on, or answers 401 or 403.

    Args:
        has_console: the console is served; a browser loads its files before it has a key.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, keyring: Keyring, has_console: bool = False
    ) -> None:
        self._app = app
        self._keyring = keyring
        self._has_console = has_console
        self._bound_to_loopback = is_loopback(settings.host)
        self._insecure = settings.insecure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks HTTP requests. Websockets are not passed on: there are none."""
        if scope["type"] == "http":
            refusal = self._refusal(scope) or _impossible_path(scope["path"])
            app = self._app if refusal is None else error_response(refusal)
            with texts_of(key_name(scope)):
                await app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        path, keys = scope["path"], self._keyring.keys
        if path in OPEN_PATHS or (self._has_console and is_console_path(path)):
            return None
        if path in ADMIN_PATHS:
            if keys.has(Role.ADMIN):
                return self._missing_key(scope, (Role.ADMIN,), _A_KEY[Role.ADMIN])
            return self._keyless_admin_refusal(scope)
        if path == METRICS_PATH and (keys.has(Role.METRICS) or keys.has(Role.API)):
            return self._missing_key(scope, tuple(Role), "a metrics key or an API key")
        if keys.has(Role.API):
            return self._missing_key(scope, _INFERENCE_ROLES, _A_KEY[Role.API])
        return self._keyless_refusal(scope)

    def _missing_key(
        self, scope: Scope, roles: Collection[Role], needed_key: str
    ) -> ApiError | None:
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not scheme and (anthropic_key := headers.get(ANTHROPIC_KEY)) is not None:
            scheme, token = "bearer", anthropic_key
        # Headers are decoded as Latin-1; this restores the bytes as sent. White space of Latin-1
        # may be a byte of a key in UTF-8.
        key = self._keyring.keys.find(token.strip(" \t").encode("latin-1"))
        is_bearer = scheme.lower() == "bearer"
        if key is not None and key.role in roles and is_bearer:
            scope[_KEY] = key
            return None
        return _unauthorized(needed_key, key if is_bearer else None, headers)

    def _keyless_refusal(self, scope: Scope) -> ApiError | None:
        """Refuses a web page that calls this machine by a name of its own."""
        if not self._bound_to_loopback or self._insecure or names_loopback(Headers(scope=scope)):
            return None
        message = (
            "Without an API key this server answers only to localhost or a loopback address as "
            "Host. Set a key with SPECGATE_API_KEY, or start it with --insecure."
        )
        return ApiError(403, message, type="permission_error", code="host_not_allowed")

    def _keyless_admin_refusal(self, scope: Scope) -> ApiError | None:
        if not self._bound_to_loopback:
            reason = "the server does not listen on a loopback address"
        elif len(self._keyring.keys):
            reason = "the server has other keys, so others may reach it"
        elif (indirectness := indirect(scope)) is not None:
            reason = f"this request is not direct: {indirectness}"
        else:
            return None
        message = (
            "No admin key is set, so admin paths answer only direct requests from the server's "
            f"own machine to a loopback address; {reason}. Set one with SPECGATE_ADMIN_KEY or "
            "--admin-key."
        )
        return ApiError(403, message, type="permission_error", code="admin_disabled")


class OnlyThisMachine:
    """Refuses what does not come directly from the machine of the proxy that received it.

    The proxies listen, not the replicas, so no replica knows on which address.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses an HTTP request with 403, or passes it on."""
        app = self._app
        if scope["type"] == "http" and (reason := indirect(scope)) is not None:
            message = f"Without an API key only this machine is served; {reason}. Set a key."
            app = error_response(
                ApiError(403, message, type="permission_error", code="host_not_allowed")
            )
        await app(scope, receive, send)


def authorize(scope: Scope, owner: str) -> None:
    """Makes a request of the server's own one of an owner's key; see `key_owner`."""
    if owner:
        scope[_KEY] = Key(owner, Role.API, b"")


def request_key(scope: Scope) -> Key | None:
    """The key that opened an authorized request's path; `None` if the path needed none."""
    key: Key | None = scope.get(_KEY)
    return key


def key_name(scope: Scope) -> str | None:
    """The name of that key, for limits, metrics, logs and rules: never a part of the key."""
    key = request_key(scope)
    return None if key is None else key.name


def key_owner(scope: Scope) -> str:
    """Who owns what an authorized request stores: its key's name, empty where none is needed."""
    return key_name(scope) or ""


def caller(request: Request) -> Caller:
    """The origin of an authorized admin request, for the audit."""
    name, client = key_name(request.scope), request.client
    who = "loopback" if name is None else f"key:{name}"
    return Caller(who, None if client is None else client.host)


def _impossible_path(path: str) -> ApiError | None:
    """Refuses a control character in a path, of which no route has one.

    Routes are found with `$`, which also matches before a last line feed: `/v1/proposers%0a` would
    be an admin path for the routes, and none for the checks above.
    """
    if path.isprintable():
        return None
    return NotFound("No path here has a control character.", code="not_found")


def _unauthorized(needed_key: str, key: Key | None, headers: Headers) -> ApiError:
    """The refusal of a request; `key` is a valid key that does not open the path.

    Only who has a valid key learns from it that the key is valid, and its role.
    """
    message = f"This path needs {needed_key}: `Authorization: Bearer KEY`, or `x-api-key: KEY`."
    if key is not None:
        message += f" The given key is valid, but it is {_A_KEY[key.role]}."
    elif "authorization" in headers or ANTHROPIC_KEY in headers:
        message += " The given key is not valid."
    return ApiError(
        401,
        message,
        type="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
