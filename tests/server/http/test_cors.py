"""Which web pages a browser lets call the server, and what they can read."""

from typing import Any

import httpx
import pytest

from server.http.headers import RESPONSE_HEADERS
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events

PAGE, OTHER = "http://192.0.2.7:3000", "http://192.0.2.8"
KEYS: dict[str, Any] = {"api_key": ("inference",), "admin_key": ("admin",)}
KEY = {"authorization": "Bearer inference"}
ALLOW = "access-control-allow-origin"
CHAT = "/v1/chat/completions"


async def complete(gateway: Gateway, headers: dict[str, str], **fields: Any) -> httpx.Response:
    """A completion that a page requests."""
    body = {"prompt": "def f(x):", "max_tokens": 2, **fields}
    return await gateway.post("/v1/completions", body, headers=headers)


async def preflight(
    gateway: Gateway, origin: str, path: str = CHAT, method: str = "POST", **more: str
) -> httpx.Response:
    """A browser's question before a page sends JSON with a key, as openai's library for it does."""
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
        **more,
    }
    return await gateway.client.options(path, headers=headers)


def refused(response: httpx.Response, status: int = 403) -> str:
    """The message of a refusal that allows no origin."""
    assert response.status_code == status
    assert ALLOW not in response.headers
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("permission_error", "origin_not_allowed")
    message: str = error["message"]
    return message


async def test_without_the_setting_no_page_is_allowed(gateway: Gateway) -> None:
    for response in (
        await preflight(gateway, PAGE),
        await gateway.client.get("/v1/models", headers={"origin": PAGE}),
    ):
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_a_preflight_needs_no_key(start: StartGateway) -> None:
    gateway = await start(allowed_origins=PAGE, **KEYS)
    response = await preflight(gateway, PAGE)
    assert response.status_code == 200
    assert response.headers[ALLOW] == PAGE
    assert "POST" in response.headers["access-control-allow-methods"].split(", ")
    allowed = response.headers["access-control-allow-headers"].split(",")
    assert {"authorization", "content-type", "x-stainless-lang"} <= set(allowed)
    assert "Origin" in response.headers["vary"]
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
async def test_a_preflight_allows_the_methods_of_routes(start: StartGateway, method: str) -> None:
    gateway = await start(allowed_origins=PAGE)
    assert (await preflight(gateway, PAGE, method=method)).status_code == 200


async def test_another_origin_is_refused_in_the_format_of_errors(start: StartGateway) -> None:
    gateway = await start(allowed_origins=PAGE)
    for origin in (
        OTHER,
        "null",
        PAGE.replace("http:", "https:"),
        f"{PAGE}.evil",
        "http://192.0.2.7",
    ):
        message = refused(await preflight(gateway, origin))
        assert origin in message
        assert "--allowed-origins" in message
    assert len(refused(await preflight(gateway, "x" * 5000))) < 400
    response = await gateway.client.get("/v1/models", headers={"origin": OTHER})
    assert response.status_code == 200
    assert ALLOW not in response.headers


async def test_an_unknown_method_is_refused(start: StartGateway) -> None:
    gateway = await start(allowed_origins=PAGE)
    response = await preflight(gateway, PAGE, method="TRACE")
    assert response.status_code == 403
    assert "DELETE" in response.json()["error"]["message"]


async def test_every_header_of_ours_can_be_read(start: StartGateway) -> None:
    gateway = await start(allowed_origins=[PAGE, OTHER])
    response = await complete(gateway, {"origin": OTHER}, x=1)
    assert response.headers[ALLOW] == OTHER
    exposed = response.headers["access-control-expose-headers"].lower().split(", ")
    assert {name.lower() for name in RESPONSE_HEADERS} == set(exposed)
    ours = {name for name in response.headers if name.startswith("x-")}
    assert {"x-specgate-spec-method", "x-specgate-ignored-fields"} <= ours <= set(exposed)
    assert "access-control-allow-credentials" not in response.headers


async def test_a_stream_can_be_read(start: StartGateway) -> None:
    gateway = await start(allowed_origins=PAGE)
    response = await complete(gateway, {"origin": PAGE}, stream=True)
    assert response.headers[ALLOW] == PAGE
    assert events(response)


async def test_every_error_can_be_read(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(allowed_origins=PAGE, max_body_bytes=1000, **KEYS)
    page = {"origin": PAGE}
    answers = [
        await complete(gateway, page),
        await complete(gateway, page | KEY, n=0),
        await complete(gateway, page | KEY, model="none"),
        await gateway.client.get("/v1/embeddings", headers=page | KEY),
        await gateway.client.get(CHAT, headers=page | KEY),
        await complete(gateway, page | KEY, prompt="x" * 2000),
    ]

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(gateway.state.metrics, "count_request", broken)
    answers.append(await complete(gateway, page | KEY))
    assert [a.status_code for a in answers] == [401, 400, 404, 404, 405, 413, 500]
    assert [a.headers.get(ALLOW) for a in answers] == [PAGE] * len(answers)
    loading = await start(wait=False, allowed_origins=PAGE, engine_args={"fake_start_s": 60})
    response = await complete(loading, page)
    assert response.status_code == 503
    assert response.headers[ALLOW] == PAGE
    assert response.headers["retry-after"]
    assert "Retry-After" in response.headers["access-control-expose-headers"]


async def test_a_star_allows_every_page_without_credentials(start: StartGateway) -> None:
    gateway = await start(allowed_origins="*")
    assert (await preflight(gateway, OTHER)).headers[ALLOW] == "*"
    response = await complete(gateway, {"origin": "null"})
    assert response.headers[ALLOW] == "*"
    assert "access-control-allow-credentials" not in response.headers


async def test_a_private_server_is_open_to_named_pages_only(start: StartGateway) -> None:
    private = {"access-control-request-private-network": "true"}
    named = await preflight(await start(allowed_origins=PAGE), PAGE, **private)
    assert named.headers["access-control-allow-private-network"] == "true"
    response = await preflight(await start(allowed_origins="*"), PAGE, **private)
    assert response.status_code == 403
    assert "private" in response.json()["error"]["message"]


@pytest.mark.parametrize("origins", ["*", PAGE])
async def test_admin_paths_allow_no_page(start: StartGateway, origins: str) -> None:
    gateway = await start(allowed_origins=origins, **KEYS)
    paths = (("/v1/spec_method", "GET"), ("/v1/switch_spec_method", "POST"), ("/v1/fleet", "GET"))
    for path, method in paths:
        refused(await preflight(gateway, PAGE, path, method))
    admin = {"origin": PAGE, "authorization": "Bearer admin"}
    response = await gateway.client.get("/v1/spec_method", headers=admin)
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]


async def test_a_request_without_an_origin_is_as_before(start: StartGateway) -> None:
    gateway = await start(allowed_origins=PAGE)
    response = await gateway.complete(max_tokens=1)
    assert response.status_code == 200
    assert ALLOW not in response.headers
    assert (await gateway.client.options(CHAT)).status_code == 405


async def test_preflights_are_counted_under_their_route(start: StartGateway) -> None:
    gateway = await start(allowed_origins=PAGE)
    await preflight(gateway, PAGE)
    labels = {"route": CHAT, "method": "OPTIONS", "status": "200"}
    assert gateway.sample("specgate_http_requests_total", **labels) == 1
