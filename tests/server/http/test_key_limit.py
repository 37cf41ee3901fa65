"""The limits of an API key: concurrent requests, and requests in a minute."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from server.http.key_limit import COUNTED_PATHS, COUNTED_PREFIX
from tests.server.conftest import StartGateway
from tests.server.gateway import build, eventually

SMALL: dict[str, Any] = {"prompt": [7], "max_tokens": 16, "ignore_eos": True, "temperature": 0}
ENDLESS: dict[str, Any] = {"prompt": [5], "max_tokens": 2000, "ignore_eos": True}
KEYS = {"named_api_key": {"flood": "key-flood", "other": "key-other"}, "api_key": ["key-plain"]}


def bearer(name: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer key-{name}"}}


async def test_a_key_has_limits_of_its_own(start: StartGateway) -> None:
    gateway = await start(
        max_key_requests=2, max_key_requests_per_minute=5, engine_args={"fake_step_ms": 1}, **KEYS
    )

    async def ask(name: str, **more: Any) -> httpx.Response:
        return await gateway.post("/v1/completions", {**SMALL, **more}, **bearer(name))

    running = [asyncio.create_task(ask("flood", **ENDLESS)) for _ in range(2)]
    await eventually(lambda: gateway.engine.num_running == 2, 20)
    refused = await ask("flood")
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        429,
        "concurrency_limit_exceeded",
    )
    assert refused.headers["retry-after"] == "1"
    assert [(await ask("other")).status_code for _ in range(6)] == [200] * 5 + [429]
    limited = await ask("other")
    assert limited.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(limited.headers["retry-after"]) <= 12
    assert (await ask("plain")).status_code == 200
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize("path", sorted(COUNTED_PATHS))
async def test_a_request_above_a_limit_of_its_key_is_refused_before_its_body_is_read(
    start: StartGateway, path: str, tmp_path: Path
) -> None:
    files_dir = str(tmp_path / "files")
    gateway = await start(max_key_requests_per_minute=1, files_dir=files_dir, **KEYS)
    kind = "multipart/form-data; boundary=x" if path == "/v1/files" else "application/json"
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"{}"

    async def ask(name: str) -> httpx.Response:
        headers = {"content-type": kind, "authorization": f"Bearer key-{name}"}
        return await gateway.client.post(path, content=body(), headers=headers)

    # A body that is not valid counts too, or such bodies would be without a limit.
    assert (await ask("flood")).status_code == 400
    assert read == 1
    refused = await ask("flood")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert read == 1
    assert (await ask("wrong")).status_code == 401
    assert (await ask("other")).status_code == 400
    name = "specgate_limited_requests_total"
    assert gateway.sample(name, reason="rate_limit_exceeded") == 1
    assert (
        gateway.sample("specgate_http_requests_total", route=path, method="POST", status="429") == 1
    )
    # What makes no work of texts does not count.
    headers = {"authorization": "Bearer key-flood"}
    assert (await gateway.client.get("/v1/models", headers=headers)).status_code == 200


def test_every_path_with_a_limit_of_the_key_is_counted() -> None:
    app = build()[0]
    limited = {
        route.path
        for route in app.routes
        if isinstance(route, APIRoute) and "rate_limit_exceeded" in str(route.responses.get(429))
    }
    stored = {path for path in limited if path.startswith(COUNTED_PREFIX)}
    assert limited - stored == COUNTED_PATHS
    assert stored
