"""Every path needs a key unless it is listed as open; admin paths need an admin key."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from server.http.auth import ADMIN_PATHS, FLEET_PATH, AuthMiddleware, key_name
from server.http.keyring import Keyring
from server.routes import admin, fleet, lora, policy
from server.settings import Settings
from server.telemetry.file_metrics import FileMetrics
from server.telemetry.metric_maker import MetricMaker
from server.text_threads import _key
from tests.server.conftest import StartGateway
from tests.server.gateway import BASE_URL, Gateway, build

INFERENCE, ADMIN, SCRAPER = "sk-inference", "sk-admin", "sk-scraper"
SWITCH = {"speculative_model": "ngram"}


def make_app(**settings: Any) -> FastAPI:
    """A gateway that has not started: authorization is checked first."""
    return build(**settings)[0]


def client_of(app: FastAPI, peer: str = "127.0.0.1", base_url: str = BASE_URL) -> httpx.AsyncClient:
    """A client at the address `peer` that calls `base_url`."""
    transport = httpx.ASGITransport(app, client=(peer, 5000), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=base_url)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every method and path that the application answers."""
    for route in app.routes:
        assert isinstance(route, Route), f"{route} is checked by no test here"
        for method in sorted(route.methods or ()):
            yield method, route.path.replace("{", "").replace("}", "").replace(":path", "")


async def ask(app: FastAPI, method: str, path: str, **headers: str) -> httpx.Response:
    async with client_of(app) as client:
        return await client.request(method, path, headers=headers)


async def test_every_route_but_the_probes_needs_a_key() -> None:
    app = make_app(api_key=[INFERENCE], admin_key=[ADMIN])
    seen = set()
    for method, path in routes(app):
        response = await ask(app, method, path)
        seen.add(path)
        if path in ("/health", "/ping", "/ready") or path.startswith("/console"):
            assert response.status_code != 401, path
        else:
            assert response.status_code == 401, f"{method} {path} needs no key"
            assert response.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                error = response.json()["error"]
                assert (error["code"], error["param"]) == ("invalid_api_key", None)
    assert seen >= {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/models",
        "/metrics",
    }
    assert seen >= {"/health", "/ping", "/ready"}


async def test_without_the_console_its_paths_are_unknown_paths() -> None:
    app = make_app(api_key=[INFERENCE], console=False)
    for path in ("/console", "/console/main.js"):
        assert (await ask(app, "GET", path)).status_code == 401
        assert (await ask(app, "GET", path, **bearer(INFERENCE))).status_code == 404


async def test_only_the_consoles_own_paths_need_no_key() -> None:
    app = make_app(api_key=[INFERENCE])
    assert (await ask(app, "GET", "/console")).status_code == 200
    for path in ("/consoles", "/console.json", "/v1/console"):
        assert (await ask(app, "GET", path)).status_code == 401


async def test_an_unknown_path_needs_a_key() -> None:
    app = make_app(api_key=[INFERENCE])
    assert (await ask(app, "GET", "/nothing")).status_code == 401
    assert (await ask(app, "GET", "/nothing", **bearer(INFERENCE))).status_code == 404


async def test_every_admin_route_refuses_an_inference_key() -> None:
    app = make_app(api_key=[INFERENCE], admin_key=[ADMIN])
    for method, path in routes(app):
        status = (await ask(app, method, path, **bearer(INFERENCE))).status_code
        assert (status == 401) == (path in ADMIN_PATHS), f"{method} {path}"


def test_every_admin_route_is_on_the_list() -> None:
    routers = (admin.router, fleet.router, lora.router, policy.router)
    found = {route.path for router in routers for route in router.routes}  # type: ignore[attr-defined]
    assert found | {FLEET_PATH, "/tokenizer_info"} == ADMIN_PATHS


async def test_an_admin_key_is_accepted_on_every_route() -> None:
    app = make_app(api_key=[INFERENCE], admin_key=[ADMIN, "sk-second"])
    for method, path in routes(app):
        for key in (ADMIN, "sk-second"):
            assert (await ask(app, method, path, **bearer(key))).status_code not in (401, 403)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Basic {ADMIN}",
        ADMIN,
        f"Bearer {ADMIN}x",
        "Bearer ü",
    ],
)
async def test_an_invalid_key_is_refused(header: str) -> None:
    app = make_app(api_key=[INFERENCE], admin_key=[ADMIN])
    for path in ("/v1/models", "/v1/proposers"):
        async with client_of(app) as client:
            response = await client.get(path, headers={b"Authorization": header.encode()})
        assert response.status_code == 401
        assert "The given key is not valid" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "key", "needed", "given"),
    [
        ("/v1/proposers", INFERENCE, "an admin key", "an API key"),
        ("/v1/proposers", SCRAPER, "an admin key", "a metrics key"),
        ("/v1/models", SCRAPER, "an API key", "a metrics key"),
    ],
)
async def test_a_valid_key_that_does_not_open_a_path_is_called_valid(
    path: str, key: str, needed: str, given: str
) -> None:
    app = make_app(api_key=[INFERENCE], admin_key=[ADMIN], metrics_key=[SCRAPER])
    refused = await ask(app, "GET", path, **bearer(key))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (401, "invalid_api_key")
    assert error["message"] == (
        f"This path needs {needed}: `Authorization: Bearer KEY`, or `x-api-key: KEY`. "
        f"The given key is valid, but it is {given}."
    )


async def test_a_key_that_is_not_valid_tells_nothing_of_those_that_are() -> None:
    app = make_app(api_key=[INFERENCE], admin_key=[ADMIN], metrics_key=[SCRAPER])
    for header in (f"Bearer {INFERENCE[:-1]}", f"Basic {SCRAPER}", SCRAPER):
        refused = await ask(app, "GET", "/v1/proposers", Authorization=header)
        assert refused.json()["error"]["message"].endswith("The given key is not valid.")


@pytest.mark.parametrize("header", [f"bearer {INFERENCE}", f"Bearer  {INFERENCE} "])
async def test_a_key_is_accepted_in_every_form_that_http_allows(header: str) -> None:
    app = make_app(api_key=[INFERENCE])
    assert (await ask(app, "GET", "/v1/models", Authorization=header)).status_code != 401


async def test_a_key_can_be_non_ascii() -> None:
    app = make_app(api_key=["schlüssel"])
    async with client_of(app) as client:
        headers = {b"Authorization": "Bearer schlüssel".encode()}
        assert (await client.get("/v1/models", headers=headers)).status_code != 401


@pytest.mark.parametrize("key", ["clé-à", "key-\u0105\u0185"])
async def test_the_last_byte_of_a_key_is_not_white_space(key: str) -> None:
    app = make_app(api_key=[key])
    async with client_of(app) as client:
        headers = {b"Authorization": b"Bearer  " + key.encode() + b" "}
        assert (await client.get("/v1/models", headers=headers)).status_code != 401


async def test_without_api_keys_inference_is_open_and_admin_closed(start: StartGateway) -> None:
    client = (await start(admin_key=[ADMIN])).client
    assert (await client.get("/v1/models")).status_code == 200
    assert (await client.get("/v1/proposers")).status_code == 401
    assert (await client.get("/v1/proposers", headers=bearer(ADMIN))).status_code == 200


async def test_without_an_admin_key_a_direct_local_request_can_switch(gateway: Gateway) -> None:
    response = await gateway.client.post("/v1/switch_spec_method", json=SWITCH)
    assert response.status_code == 200


@pytest.mark.parametrize("base_url", ["http://localhost:8000", "http://[::1]:8000"])
async def test_every_name_of_loopback_is_accepted(base_url: str) -> None:
    async with client_of(make_app(), base_url=base_url) as client:
        assert (await client.get("/v1/proposers")).status_code != 403


@pytest.mark.parametrize(
    ("peer", "base_url", "headers"),
    [
        ("10.0.0.7", "http://127.0.0.1:8000", {}),
        ("127.0.0.1", "http://specgate.example", {}),
        ("127.0.0.1", "http://127.0.0.1.example.org", {}),
        ("127.0.0.1", "http://127.0.0.1:8000", {"X-Forwarded-For": "127.0.0.1"}),
        ("127.0.0.1", "http://127.0.0.1:8000", {"X-Forwarded-Host": "localhost"}),
        ("127.0.0.1", "http://127.0.0.1:8000", {"Forwarded": "for=127.0.0.1"}),
        ("127.0.0.1", "http://127.0.0.1:8000", {"Via": "1.1 proxy"}),
        ("127.0.0.1", "http://127.0.0.1:8000", {"X-Real-IP": "127.0.0.1"}),
        ("127.0.0.1", "http://127.0.0.1:8000", {"Origin": "https://evil.example"}),
        ("127.0.0.1", "http://127.0.0.1:8000", {"Origin": "null"}),
        ("127.0.0.1", "http://127.0.0.1:8000", {"Host": "["}),
    ],
)
async def test_without_an_admin_key_other_requests_are_refused(
    gateway: Gateway, peer: str, base_url: str, headers: dict[str, str]
) -> None:
    async with client_of(gateway.app, peer, base_url) as client:
        response = await client.post("/v1/switch_spec_method", json=SWITCH, headers=headers)
    assert gateway.runtime.switcher.active.epoch == 0
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "admin_disabled"


async def test_a_server_on_a_public_address_needs_an_admin_key() -> None:
    assert (await ask(make_app(host="0.0.0.0"), "GET", "/v1/proposers")).status_code == 403


async def test_a_refused_request_is_counted_under_its_route() -> None:
    app, _, registry = build(api_key=[INFERENCE])
    await ask(app, "POST", "/v1/completions")
    labels = {"route": "/v1/completions", "method": "POST", "status": "401"}
    assert registry.get_sample_value("specgate_http_requests_total", labels) == 1


async def test_a_key_is_called_by_its_name() -> None:
    app = make_app(named_api_key=["team-a=sk-a", "team-b=sk-b=="], admin_key=[ADMIN])
    assert (await ask(app, "GET", "/nothing")).status_code == 401
    for key in ("sk-a", "sk-b=="):
        assert (await ask(app, "GET", "/nothing", **bearer(key))).status_code == 404
        assert (await ask(app, "GET", "/v1/spec_policy", **bearer(key))).status_code == 401
    fingerprint = hashlib.sha256(ADMIN.encode()).hexdigest()[:8]
    for key, name in (("sk-b==", "team-b"), ("sk-a", "team-a"), (ADMIN, fingerprint)):
        assert await seen_name(app.state.specgate.settings, bearer(key)) == name


async def test_a_key_that_is_not_needed_has_no_name() -> None:
    settings = make_app(admin_key=[ADMIN]).state.specgate.settings
    assert await seen_name(settings, bearer(ADMIN)) is None
    assert await seen_name(settings, {}) is None


async def seen_name(settings: Settings, headers: dict[str, str]) -> str | None:
    """The name of the key that an application behind the middleware sees."""
    names = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        names.append(key_name(scope))
        assert _key.get() == key_name(scope)
        await Response()(scope, receive, send)

    middleware = AuthMiddleware(
        app, settings, Keyring(settings, FileMetrics(MetricMaker(CollectorRegistry())))
    )
    transport = httpx.ASGITransport(middleware)
    async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
        assert (await client.get("/v1/models", headers=headers)).status_code == 200
    (name,) = names
    return name


async def test_a_metrics_key_opens_the_metrics_alone() -> None:
    app = make_app(api_key=[INFERENCE], admin_key=[ADMIN], metrics_key=["sk-metrics"])
    for method, path in routes(app):
        status = (await ask(app, method, path, **bearer("sk-metrics"))).status_code
        is_open = path in ("/health", "/ping", "/ready", "/metrics") or path.startswith("/console")
        assert (status == 401) != is_open, f"{method} {path}"
    for key in (INFERENCE, ADMIN):
        assert (await ask(app, "GET", "/metrics", **bearer(key))).status_code == 200


async def test_a_metrics_key_closes_the_metrics_of_an_open_server() -> None:
    app = make_app(metrics_key=["sk-metrics"])
    assert (await ask(app, "GET", "/metrics")).status_code == 401
    assert (await ask(app, "GET", "/metrics", **bearer("sk-metrics"))).status_code == 200
    assert (await ask(app, "GET", "/v1/models")).status_code == 503
    assert (await ask(app, "GET", "/v1/proposers")).status_code == 403


@pytest.mark.parametrize("key", ["api_key", "metrics_key"])
async def test_another_key_closes_the_admin_paths(key: str) -> None:
    app = make_app(**{key: [INFERENCE]})
    for method, path in routes(app):
        if path in ADMIN_PATHS:
            response = await ask(app, method, path, **bearer(INFERENCE))
            assert response.status_code == 403
            if method != "HEAD":
                assert "the server has other keys" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "0.0.0.0", "[", "@", ""]
)
async def test_a_keyless_server_on_loopback_refuses_other_names(host: str) -> None:
    app = make_app()
    for method, path in routes(app):
        response = await ask(app, method, path, Host=host)
        if path in ("/health", "/ping", "/ready") or path.startswith("/console"):
            assert response.status_code != 403
        elif method != "HEAD":
            code = "admin_disabled" if path in ADMIN_PATHS else "host_not_allowed"
            assert (response.status_code, response.json()["error"]["code"]) == (403, code)


@pytest.mark.parametrize("settings", [{"insecure": True}, {"host": "0.0.0.0"}])
async def test_other_servers_take_every_name(settings: dict[str, Any]) -> None:
    app = make_app(**settings)
    assert (await ask(app, "GET", "/v1/models", Host="specgate.example")).status_code == 503
    response = await ask(app, "GET", "/v1/proposers", Host="specgate.example")
    assert response.json()["error"]["code"] == "admin_disabled"


async def test_a_server_with_keys_takes_every_name() -> None:
    app = make_app(api_key=[INFERENCE])
    headers = {"Host": "specgate.example", **bearer(INFERENCE)}
    assert (await ask(app, "GET", "/v1/models", **headers)).status_code == 503


async def test_new_keys_are_used_from_the_next_request_on(tmp_path: Path) -> None:
    (file := tmp_path / "keys").write_text("team api old\n")
    app = make_app(key_file=str(file))
    file.write_text("team api new\n")
    assert (await ask(app, "GET", "/nothing", **bearer("old"))).status_code == 404
    assert app.state.specgate.keyring.reload()
    assert (await ask(app, "GET", "/nothing", **bearer("old"))).status_code == 401
    assert (await ask(app, "GET", "/nothing", **bearer("new"))).status_code == 404
