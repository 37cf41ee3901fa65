"""Every error of a route has the format of its API; the routes are read from the application."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route
from structlog.testing import capture_logs

from server.schema.known_fields import fields_at
from server.state import AppState
from tests.server.gateway import BASE_URL, build

OPEN = {"/health", "/ping", "/ready"}
"""The routes that answer without a key, because probes have none."""

CONSOLE = {"/console": 200, "/console/": 307, "/console/x": 404}
"""The console's paths and their status in every state: static files, which read no state."""

KEYS: dict[str, Any] = {"api_key": ("inference",), "admin_key": ("admin",)}
ADMIN = {"authorization": "Bearer admin"}
JSON = {"content-type": "application/json"}


def routes(app: FastAPI) -> Iterator[tuple[str, str, Route]]:
    """Every (method, path) of the application, with a value for each placeholder."""
    for route in app.routes:
        assert isinstance(route, Route), f"{route} has a type that this test does not know"
        path = route.path_format.format(**dict.fromkeys(route.param_convertors, "x"))
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield method, path, route


def takes_body(route: Route) -> bool:
    """Whether the route reads a JSON body."""
    return isinstance(route, APIRoute) and route.body_field is not None


def check(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, after checking its status and format."""
    where = f"{response.request.method} {response.request.url.path}"
    assert response.status_code == status, (where, response.text)
    assert response.headers["content-type"] == "application/json", where
    assert response.headers["x-request-id"], where
    body = response.json()
    if response.request.url.path.startswith("/v1/messages"):
        assert (body.pop("type"), body.pop("request_id")) == (
            "error",
            response.headers["x-request-id"],
        )
    assert set(body) == {"error"}, where
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}, where
    assert isinstance(error["message"], str), where
    assert error["message"], where
    assert isinstance(error["type"], str), where
    for key in ("param", "code"):
        assert error[key] is None or isinstance(error[key], str), where
    return error


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """A started application with keys, and an in-process client."""
    app, _, _ = build(**KEYS, **settings)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client,
    ):
        state: AppState = app.state.specgate
        await state.start_ended.wait()
        yield app, client


def test_all_routes_are_checked() -> None:
    app, _, _ = build()
    found = {path for _, path, _ in routes(app)}
    assert {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/compact",
        "/v1/responses/x",
        "/v1/responses/x/cancel",
        "/v1/responses/x/input_items",
        "/v1/models",
        "/v1/models/x",
        "/tokenize",
        "/detokenize",
        "/health",
        "/ready",
        "/version",
        "/metrics",
        "/v1/switch_spec_method",
        "/v1/spec_method",
        "/v1/proposers",
        "/openapi.json",
    } <= found


async def test_401_without_a_key() -> None:
    async with running() as (app, client):
        for method, path, _ in routes(app):
            for headers in ({}, {"authorization": "Bearer wrong"}):
                response = await client.request(method, path, headers=headers)
                if path in OPEN or path in CONSOLE:
                    assert response.status_code == CONSOLE.get(path, 200)
                else:
                    check(response, 401)


async def test_404_for_an_unknown_path() -> None:
    async with running() as (app, client):
        for _, path, _ in routes(app):
            check(await client.get(f"{path}/x/y", headers=ADMIN), 404)
        check(await client.get("/", headers=ADMIN), 404)


async def test_405_for_an_unsupported_method() -> None:
    async with running() as (app, client):
        methods: dict[str, set[str]] = {}
        for method, path, _ in routes(app):
            methods.setdefault(path, set()).add(method)
        for path, known in methods.items():
            for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} - known:
                response = await client.request(method, path, headers=ADMIN)
                check(response, 405)
                assert set(response.headers["allow"].split(", ")) - {"HEAD"} == known


async def test_413_for_a_large_body() -> None:
    async with running(max_body_bytes=100) as (app, client):
        for method, path, _ in routes(app):
            response = await client.request(method, path, headers=ADMIN, content=b" " * 101)
            check(response, 413)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"\xff", b'{"x": NaN}'])
async def test_400_for_a_bad_body(content: bytes) -> None:
    async with running(strict_fields=True) as (app, client):
        for method, path, route in routes(app):
            if takes_body(route):
                headers = {**ADMIN, **JSON}
                response = await client.request(method, path, headers=headers, content=content)
                check(response, 400)


async def test_400_for_a_field_of_the_wrong_type() -> None:
    async with running() as (app, client):
        for method, path, route in routes(app):
            if not takes_body(route):
                continue
            assert isinstance(route, APIRoute)
            assert route.body_field is not None
            for name in fields_at(route.body_field.field_info.annotation, ()):
                wrong = json.dumps({name: [[[]]]})
                headers = {**ADMIN, **JSON}
                response = await client.request(method, path, headers=headers, content=wrong)
                error = check(response, 400)
                assert error["param"], (path, name)


async def test_500_for_an_unexpected_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (app, client):

        def broken(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("a secret of the server")

        # Every route reads the state first; the schema route reads the schema.
        monkeypatch.setattr(type(app.state), "__getattr__", broken)
        monkeypatch.setattr(app, "openapi", broken)
        with capture_logs() as lines:
            reading = [(method, path) for method, path, _ in routes(app) if path not in CONSOLE]
            for method, path in reading:
                error = check(await client.request(method, path, headers=ADMIN), 500)
                assert error["code"] == "internal_error"
                assert "secret" not in error["message"]
        assert sum(line["event"] == "unhandled_exception" for line in lines) == len(reading)


async def test_503_while_the_engine_loads() -> None:
    app, _, _ = build(**KEYS, engine_args={"fake_start_s": 60})
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client,
    ):
        for method, path, _ in routes(app):
            response = await client.request(method, path, headers=ADMIN)
            if path in ("/health", "/ping", "/version", "/metrics", "/openapi.json"):
                assert response.status_code == 200, path
            elif path in CONSOLE:
                assert response.status_code == CONSOLE[path]
            else:
                check(response, 503)
                assert int(response.headers["retry-after"]) > 0
