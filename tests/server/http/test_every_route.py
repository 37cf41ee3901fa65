"""Every route with every kind of key, in many spellings: what a key does not open, stays shut.

The first test asks the middleware and the routes, without the handlers, so that it can try all. The
second sends the same through the whole application.
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from server.http.auth import AuthMiddleware
from tests.server.gateway import build

KEYS = {
    "none": "",
    "wrong": "sk-wrong",
    "api": "sk-api",
    "admin": "sk-admin",
    "metrics": "sk-metrics",
}
"""Kind -> a key of it."""

EVERYBODY, ANY_KEY = frozenset(KEYS), frozenset({"api", "admin", "metrics"})
CLIENTS, ADMINS = frozenset({"api", "admin"}), frozenset({"admin"})

OPENED_BY = {
    **dict.fromkeys(
        ("/health", "/ping", "/ready", "/console", "/console/", "/console/{name}"), EVERYBODY
    ),
    "/metrics": ANY_KEY,
    **dict.fromkeys(
        (
            *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
            *("/v1/responses/{response_id:stored}", "/v1/responses/{response_id}/cancel"),
            *("/v1/responses/input_tokens", "/v1/responses/compact", "/v1/conversations"),
            *("/v1/conversations/{conversation_id}", "/v1/conversations/{conversation_id}/items"),
            "/v1/conversations/{conversation_id}/items/{item_id}",
            *("/v1/responses/{response_id}/input_items", "/v1/models"),
            *("/v1/models/{model_id:path}", "/version", "/tokenize", "/detokenize"),
            *("/v1/messages", "/v1/messages/count_tokens", "/openapi.json", "/load"),
            *("/v1/chat/completions/batch", "/invocations", "/inference/v1/generate"),
            *("/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content"),
            *("/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"),
        ),
        CLIENTS,
    ),
    **dict.fromkeys(
        (
            *("/v1/switch_spec_method", "/v1/spec_method", "/v1/spec_policy", "/v1/explain"),
            *("/v1/check_switch", "/v1/fleet_method"),
            *("/v1/proposers", "/v1/load_proposer", "/v1/unload_proposer"),
            *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/tokenizer_info"),
            "/reset_prefix_cache",
        ),
        ADMINS,
    ),
}
"""Route -> the kinds of keys that open it. A new route is entered here."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get")

SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda p: p,
    lambda p: f"{p}%0a",
    lambda p: f"{p}/",
    lambda p: f"{p}//",
    lambda p: f"/{p}",
    lambda p: f"//127.0.0.1{p}",
    lambda p: f"http://127.0.0.1{p}",
    lambda p: p[1:],
    str.upper,
    str.title,
    lambda p: f"/.{p}",
    lambda p: f"{p}/.",
    lambda p: f"{p}/..",
    lambda p: f"/x/..{p}",
    lambda p: f"/health/..{p}",
    lambda p: f"/health/../..{p}",
    lambda p: f"/health{p}",
    lambda p: f"/health;{p}",
    lambda p: f"/console/..{p}",
    lambda p: f"/console/%2e%2e{p}",
    lambda p: f"/console{p}",
    lambda p: f"/console/x%2f..%2f..{p}",
    lambda p: f"/metrics/..{p}",
    lambda p: f"/v1/models/../..{p}",
    lambda p: f"/v1/models{p}",
    lambda p: f"{p}?x=1",
    lambda p: f"/health?{p}",
    lambda p: f"{p}#x",
    lambda p: f"{p};x=1",
    lambda p: f"{p}.json",
    lambda p: f"{p}%00",
    lambda p: f"{p}%0d%0a",
    lambda p: f"{p}%20",
    lambda p: f"%20{p}",
    lambda p: f"{p}%09",
    lambda p: f"{p}%ff",
    lambda p: f"{p}%2f",
    lambda p: f"{p}%3f",
    lambda p: p.replace("/", "%2f"),
    lambda p: p.replace("/", "%252f"),
    lambda p: p.replace("/", "\\"),
    lambda p: p.replace("/", "%5c"),
    lambda p: p.replace("/", "%ef%bc%8f"),
    lambda p: "".join(f"%{ord(c):02x}" if c.isalpha() else c for c in p),
    lambda p: "".join(f"%25{ord(c):02x}" if c.isalpha() else c for c in p),
    lambda p: p.replace("o", "%c0%af"),
)
"""Ways to write a path on the wire."""


def make_app() -> FastAPI:
    """A gateway with a key of each kind, which has not started."""
    keys: dict[str, Any] = {f"{role}_key": [KEYS[role]] for role in ("api", "admin", "metrics")}
    return build(**keys)[0]


def paths(app: FastAPI) -> list[str]:
    """A path of each route."""
    return sorted(
        {
            route.path_format.format(**dict.fromkeys(route.param_convertors, "x"))  # type: ignore[attr-defined]
            for route in app.routes
        }
    )


def scope_of(app: FastAPI, method: str, target: str, key: str) -> dict[str, Any]:
    """What uvicorn makes of a request line and a key."""
    raw, _, query = target.partition("?")
    headers = [(b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json")]
    if key:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        "app": app,
    }


def targets(app: FastAPI) -> Iterator[str]:
    """Every path in every spelling, once."""
    yield from dict.fromkeys(spell(path) for path in paths(app) for spell in SPELLINGS)


def test_the_table_has_every_route() -> None:
    assert {route.path for route in make_app().routes} == set(OPENED_BY)  # type: ignore[attr-defined]
    assert len(SPELLINGS) >= 29


@pytest.mark.parametrize("kind", KEYS)
async def test_what_a_key_does_not_open_stays_shut(kind: str) -> None:
    app = make_app()
    passed: list[Scope] = []

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope)

    state = app.state.specgate
    middleware = AuthMiddleware(behind, state.settings, state.keyring, has_console=True)
    tried = 0
    for target in targets(app):
        for method in METHODS:
            await middleware(scope_of(app, method, target, KEYS[kind]), _not_read, _ignore)
            tried += 1
    assert tried > 10_000
    reached = {
        route.path: scope["raw_path"]  # type: ignore[attr-defined]
        for scope in passed
        for route in app.routes
        if route.matches(scope)[0] is not Match.NONE
    }
    shut = {path: raw for path, raw in reached.items() if kind not in OPENED_BY[path]}
    assert shut == {}, f"the {kind} key opens more than it should: route -> path as sent"
    # The test would prove nothing if the key opened nothing, or no route had the paths.
    assert {path for path, kinds in OPENED_BY.items() if kind in kinds} <= set(reached)


@pytest.mark.parametrize("kind", ["none", "wrong", "api", "metrics"])
async def test_the_application_runs_no_route_that_the_key_does_not_open(kind: str) -> None:
    app = make_app()
    for path in paths(app):
        for spell in SPELLINGS[:10]:
            for method in ("GET", "POST", "DELETE"):
                scope = scope_of(app, method, spell(path), KEYS[kind])
                sent: list[Message] = []

                async def keep(message: Message, sent: list[Message] = sent) -> None:
                    sent.append(message)

                body: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]
                await app(scope, client_that_leaves(body), keep)
                route = getattr(scope.get("route"), "path", None)
                assert route is None or kind in OPENED_BY[route], (method, scope["raw_path"])
                if path in ("/health", "/ping", "/ready") or path.startswith("/console"):
                    continue
                if kind in ("none", "wrong"):
                    assert sent[0]["status"] == 401, (method, scope["raw_path"])
                    assert body, f"the body was read: {method} {spell(path)}"


def client_that_leaves(body: list[Message]) -> Receive:
    """A client that sends the parts of a body, which are taken from the list, and then leaves."""

    async def receive() -> Message:
        return body.pop(0) if body else {"type": "http.disconnect"}

    return receive


async def _not_read() -> Message:
    raise AssertionError("the body was read before the key was checked")


async def _ignore(_: Message) -> None:
    """The answer is not looked at."""
