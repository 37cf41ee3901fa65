"""`specgate console`: the page for a server elsewhere, and the calls that it passes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.console.proxy import create_console
from server.fleet.desired import DesiredState, state_json
from tests.server.conftest import StartGateway, StartServer
from tests.server.gateway import Gateway, events, eventually
from tests.server.threaded import ADMIN_KEY

HERE = "http://127.0.0.1:8001"
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}


@asynccontextmanager
async def console(
    gateway: Gateway, transport: httpx.AsyncBaseTransport | None = None, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a console for the gateway."""
    to_gateway = transport or httpx.ASGITransport(gateway.app, client=("127.0.0.1", 5000))
    app = create_console(
        "http://127.0.0.1:8000", **{"on_loopback": True, **options}, transport=to_gateway
    )
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 6000), raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=HERE) as client,
    ):
        yield client


async def test_it_serves_the_page_and_passes_calls_on(gateway: Gateway) -> None:
    async with console(gateway) as client:
        assert "Specgate console" in (await client.get("/console")).text
        assert (await client.get("/v1/spec_method")).json()["spec_method"] == "draft"
        body = {"speculative_model": "ngram", "reason": "by the console"}
        switched = await client.post("/v1/switch_spec_method", json=body)
        assert switched.json()["active"]["spec_method"] == "ngram"
        names = {"name[]": "vllm:num_requests_running"}
        assert "vllm:num_requests_running{" in (await client.get("/metrics", params=names)).text
    assert gateway.runtime.switcher.active.name == "ngram"


async def test_a_stream_passes_unchanged(gateway: Gateway) -> None:
    async with console(gateway) as client:
        through = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    direct = await gateway.chat("Hello", max_tokens=12, temperature=0, stream=True)

    def texts(response: httpx.Response) -> list[Any]:
        return [c["delta"].get("content") for e in events(response) for c in e["choices"]]

    assert texts(through) == texts(direct)
    assert through.headers["x-specgate-spec-method"] == "draft"


async def test_the_servers_refusal_passes_unchanged(start: StartGateway) -> None:
    gateway = await start(admin_key=["right"])
    async with console(gateway) as client:
        for key, status in (("wrong", 401), ("right", 200)):
            headers = {"authorization": f"Bearer {key}"}
            answer = await client.get("/v1/spec_method", headers=headers)
            assert answer.status_code == status
        assert answer.json()["spec_method"] == "draft"


async def test_a_server_that_is_gone_is_named(gateway: Gateway) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    async with console(gateway, httpx.MockTransport(refuse)) as client:
        answer = await client.get("/v1/spec_method")
    assert answer.status_code == 502
    error = answer.json()["error"]
    assert error["code"] == "server_unreachable"
    assert error["message"].startswith("The server at http://127.0.0.1:8000 does not answer: ")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://elsewhere.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"host": "elsewhere.example:8001"},
        {"host": "[bad"},
    ],
)
async def test_another_page_in_the_browser_cannot_use_it(
    gateway: Gateway, headers: dict[str, str]
) -> None:
    async with console(gateway) as client:
        body = {"speculative_model": "ngram"}
        answer = await client.post("/v1/switch_spec_method", json=body, headers=headers)
    assert answer.status_code == 403
    assert gateway.runtime.switcher.active.name == "draft"


async def test_its_own_page_can_use_it(gateway: Gateway) -> None:
    async with console(gateway) as client:
        body = {"speculative_model": "ngram"}
        headers = {"origin": HERE}
        answer = await client.post("/v1/switch_spec_method", json=body, headers=headers)
    assert answer.status_code == 200


async def test_a_console_that_others_reach_opens_no_admin_route_without_a_key(
    gateway: Gateway,
) -> None:
    async with console(gateway, on_loopback=False) as client:
        answer = await client.get("/v1/spec_method", headers={"host": "lab:8001"})
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "admin_disabled"
        assert (await client.get("/health", headers={"host": "lab:8001"})).status_code == 200


async def test_behind_a_proxy_it_opens_no_admin_route_without_a_key(gateway: Gateway) -> None:
    """A proxy on this machine calls it by a loopback name, for clients anywhere."""
    async with console(gateway) as client:
        for header in ("x-forwarded-for", "forwarded", "via", "x-real-ip"):
            answer = await client.get("/v1/spec_method", headers={header: "203.0.113.9"})
            assert answer.status_code == 403, header


@pytest.mark.parametrize("version", ["1.0", "0.9"])
async def test_an_older_http_opens_no_admin_route_without_a_key(
    gateway: Gateway, version: str
) -> None:
    """A proxy that is told nothing else speaks it, and adds no header."""
    async with console(gateway) as client:
        app = client._transport.app  # type: ignore[attr-defined]

        async def by_older_http(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "http_version": version}, receive, send)

        transport = httpx.ASGITransport(by_older_http, client=("127.0.0.1", 6000))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as proxy:
            body = {"speculative_model": "ngram"}
            answer = await proxy.post("/v1/switch_spec_method", json=body)
            assert answer.status_code == 403
            assert answer.json()["error"]["code"] == "admin_disabled"
            assert (await proxy.get("/health")).status_code == 200
    assert gateway.runtime.switcher.active.name == "draft"


async def test_a_path_that_climbs_is_refused(gateway: Gateway) -> None:
    async with console(gateway) as client:
        answer = await client.get("/v1/%2e%2e/admin")
    assert answer.status_code in {400, 404}


class Endless(httpx.AsyncByteStream):
    """A stream that never ends, and says when it is closed."""

    def __init__(self) -> None:
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b"data: {}\n\n"
            await asyncio.sleep(0.01)

    async def aclose(self) -> None:
        self.closed = True


async def test_a_browser_that_leaves_ends_the_servers_stream(gateway: Gateway) -> None:
    endless = Endless()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=endless))
    app = create_console("http://127.0.0.1:8000", on_loopback=True, transport=transport)
    came, leave = asyncio.Event(), asyncio.Event()
    bodies = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if bodies:
            return bodies.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            came.set()

    scope = {
        **{"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""},
        **{"headers": [(b"host", b"127.0.0.1:8001")], "client": ("127.0.0.1", 1), "root_path": ""},
        **{"http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 8001)},
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }
    exchange = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]
    await asyncio.wait_for(came.wait(), 60)
    assert not endless.closed
    leave.set()
    await asyncio.wait_for(exchange, 60)
    await eventually(lambda: endless.closed)


async def test_a_fleet_is_shown_replica_by_replica(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.fleet.view.VIEW_ANSWER_S", 300.0)
    other = tmp_path / "state.json"
    other.write_bytes(state_json(DesiredState(4, "ngram", 5)))
    servers = [start_server(), start_server(), start_server(fleet_state=str(other))]
    urls = [*(server.url for server in servers), "http://127.0.0.1:9"]
    app = create_console(urls[0], on_loopback=True, fleet=urls)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 6000), raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=HERE) as client,
    ):
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        lines = (await client.get("/fleet", headers=headers)).json()
        foreign = await client.get("/fleet", headers={"origin": "http://elsewhere"})
        unknown = (await client.get("/fleet")).json()
    assert [line["replica"] for line in lines] == urls
    assert [line["differs"] for line in lines] == [False, False, True, True]
    assert (lines[2]["spec_method"], lines[2]["fleet"]["generation"]) == ("ngram", 4)
    assert "cannot be reached" in lines[3]["error"]
    assert foreign.status_code == 403
    assert all("invalid_api_key" in line["error"] for line in unknown[:3]), "the browser's key only"


class Watched(httpx.AsyncBaseTransport):
    """Answers as the gateway, with a cookie; knows what it was sent, and whether it is closed."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = httpx.ASGITransport(gateway.app, client=("127.0.0.1", 5000))
        self.requests: list[httpx.Request] = []
        self.is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        response = await self._gateway.handle_async_request(request)
        response.headers["set-cookie"] = "session=of-one-browser"
        return response

    async def aclose(self) -> None:
        self.is_closed = True


async def test_all_calls_of_a_console_share_connections_and_no_cookie(gateway: Gateway) -> None:
    watched = Watched(gateway)
    async with console(gateway, watched, fleet=["http://127.0.0.1:8000"]) as client:
        for path in ("/fleet", "/fleet", "/v1/spec_method", "/v1/spec_method"):
            assert (await client.get(path)).status_code == 200
        assert not watched.is_closed
    assert watched.is_closed
    assert len(watched.requests) == 4
    assert not any("cookie" in request.headers for request in watched.requests)


async def test_a_console_of_one_server_has_no_fleet(gateway: Gateway) -> None:
    async with console(gateway) as client:
        assert (await client.get("/fleet")).status_code == 404
