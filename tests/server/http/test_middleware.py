"""Request ids, HTTP metrics and unexpected errors."""

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.http.middleware import MAX_REFUSALS, ErrorBoundary, _Refusals
from server.telemetry.repeated_warning import LOG_EVERY_S
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

REQUESTS = "specgate_http_requests_total"


async def test_a_valid_request_id_is_kept(gateway: Gateway) -> None:
    for sane in ("abc-123", "a" * 128, "0af7:4e.b_1"):
        response = await gateway.client.get("/health", headers={"x-request-id": sane})
        assert response.headers["x-request-id"] == sane
    seen = set()
    for odd in ("", "a" * 129, "a b", "é".encode().decode("latin-1"), "<script>"):
        response = await gateway.client.get("/health", headers=[(b"x-request-id", odd.encode())])
        made = response.headers["x-request-id"]
        assert made != odd
        seen.add(made)
    assert len(seen) == 5
    assert all(len(made) == 32 for made in seen)


async def test_every_response_has_a_request_id(gateway: Gateway) -> None:
    for response in (
        await gateway.complete(max_tokens=1),
        await gateway.complete(max_tokens=1, stream=True),
        await gateway.complete(n=0),
        await gateway.client.get("/nope"),
        await gateway.client.delete("/v1/models"),
    ):
        assert response.headers["x-request-id"]


async def test_requests_are_counted_by_route_template(gateway: Gateway) -> None:
    await gateway.client.get("/v1/models/one")
    await gateway.client.get("/v1/models/two/three")
    await gateway.client.get("/nope/1")
    await gateway.client.get("/nope/2")
    await gateway.client.put("/v1/completions")
    await gateway.client.request("BREW", "/v1/completions")
    await gateway.complete(max_tokens=1, stream=True)
    template = "/v1/models/{model_id:path}"
    assert gateway.sample(REQUESTS, route=template, method="GET", status="404") == 2
    assert gateway.sample(REQUESTS, route="unmatched", method="GET", status="404") == 2
    completions = {"route": "/v1/completions"}
    assert gateway.sample(REQUESTS, **completions, method="PUT", status="405") == 1
    assert gateway.sample(REQUESTS, **completions, method="other", status="405") == 1
    assert gateway.sample(REQUESTS, **completions, method="POST", status="200") == 1
    count = gateway.sample("specgate_http_request_seconds_count", **completions)
    assert count == 3


async def test_requests_refused_before_routing_count_under_their_route(start: StartGateway) -> None:
    gateway = await start(api_key=("secret",), max_body_bytes=100)
    await gateway.complete()
    labels = {"route": "/v1/completions", "method": "POST"}
    assert gateway.sample(REQUESTS, **labels, status="401") == 1
    key = {"authorization": "Bearer secret"}
    await gateway.post("/v1/completions", {"prompt": "x" * 200}, headers=key)
    assert gateway.sample(REQUESTS, **labels, status="413") == 1


async def test_the_access_log_has_one_line_that_cannot_be_forged(gateway: Gateway) -> None:
    with capture_logs() as lines:
        await gateway.client.get("/v1/models/a%1Bb")
        await gateway.client.get("/v1/models/a%0Aevent=forged")
    models, other = [line for line in lines if line["event"] == "request"]
    assert (models["status"], models["route"]) == (404, "/v1/models/{model_id:path}")
    assert models["path"] == "/v1/models/a%1Bb"
    assert other["path"] == "/v1/models/a%0Aevent=forged"
    assert models["duration_ms"] >= 0
    assert models["peer"] == "127.0.0.1"


async def test_an_unexpected_exception_is_a_500_without_details(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr(gateway.state.metrics, "count_request", broken)
    with capture_logs() as lines:
        response = await gateway.complete()
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"]
    assert any(line["event"] == "unhandled_exception" for line in lines)
    labels = {"route": "/v1/completions", "method": "POST", "status": "500"}
    assert gateway.sample(REQUESTS, **labels) == 1


async def test_an_exception_after_the_start_cuts_the_response() -> None:
    sent = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("half-way")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/"}
    with pytest.raises(RuntimeError, match="half-way"):
        await ErrorBoundary(app)(scope, None, send)  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == ["http.response.start"]


@pytest.mark.parametrize(("stopping", "code"), [(True, "stopping"), (False, "internal_error")])
async def test_only_a_cancellation_from_outside_is_a_stop(stopping: bool, code: str) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if not stopping:
            raise asyncio.CancelledError
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/"}
    task = asyncio.create_task(ErrorBoundary(app)(scope, None, send))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    task.cancel()
    await task
    assert json.loads(sent[-1]["body"])["error"]["code"] == code


def test_requests_without_a_valid_key_are_a_bounded_number_of_lines() -> None:
    now = 0.0
    refusals = _Refusals(lambda: now)
    lines = [refusals.line() for _ in range(MAX_REFUSALS + 50)]
    assert lines == [{}] * MAX_REFUSALS + [None] * 50
    now = LOG_EVERY_S
    assert [refusals.line(), refusals.line()] == [{"not_logged": 50}, {}]


async def test_wrong_keys_do_not_fill_the_log(start: StartGateway) -> None:
    gateway = await start(api_key=["right"])
    with capture_logs() as lines:
        for _ in range(MAX_REFUSALS + 20):
            assert (await gateway.client.get("/v1/models")).status_code == 401
        headers = {"authorization": "Bearer right"}
        assert (await gateway.client.get("/v1/models", headers=headers)).status_code == 200
    statuses = [line["status"] for line in lines if line["event"] == "request"]
    assert statuses == [401] * MAX_REFUSALS + [200]
