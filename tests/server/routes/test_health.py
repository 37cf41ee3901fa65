"""The probes while the server loads, serves, and is broken."""

from typing import Any

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually


async def status_and_code(gateway: Gateway, path: str) -> tuple[int, Any]:
    response = await gateway.client.get(path)
    return response.status_code, response.json().get("error", {}).get("code")


async def test_while_loading_it_is_alive_and_not_ready(start: StartGateway) -> None:
    gateway = await start(wait=False, engine_args={"fake_start_s": 60})
    assert await status_and_code(gateway, "/health") == (200, None)
    assert await status_and_code(gateway, "/ready") == (503, "engine_not_ready")
    assert "retry-after" in (await gateway.client.get("/ready")).headers


async def test_once_started_it_is_alive_and_ready(gateway: Gateway) -> None:
    assert (await gateway.client.get("/health")).json() == {"status": "ok"}
    assert (await gateway.client.get("/ready")).json() == {"status": "ready"}
    for path in ("/health", "/ping", "/ready"):
        response = await gateway.client.head(path)
        assert (response.status_code, response.content) == (200, b"")


async def test_a_start_that_failed_is_neither(start: StartGateway) -> None:
    gateway = await start(wait=False, engine_args={"fake_fail_start": "no memory"})
    await gateway.state.start_ended.wait()
    for path in ("/health", "/ping", "/ready"):
        assert await status_and_code(gateway, path) == (503, "engine_start_failed")
        assert "retry-after" not in (await gateway.client.get(path)).headers


async def test_an_engine_that_died_is_neither(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_die_after_steps": 1})
    await gateway.complete(max_tokens=50)
    await eventually(lambda: gateway.engine.failure is not None)
    for path in ("/health", "/ping", "/ready"):
        assert await status_and_code(gateway, path) == (503, "engine_dead")
        assert "retry-after" not in (await gateway.client.get(path)).headers


async def test_an_engine_is_neither_while_it_is_being_replaced(gateway: Gateway) -> None:
    gateway.engine.die("killed by signal 9", retry_after_s=3.1)
    for path in ("/health", "/ping", "/ready"):
        response = await gateway.client.get(path)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "4"
        assert response.json()["error"]["message"] == "The engine died: killed by signal 9."
    gateway.engine.revive()
    for path in ("/health", "/ping", "/ready"):
        assert await status_and_code(gateway, path) == (200, None)


async def test_while_it_stops_it_is_alive_and_not_ready(gateway: Gateway) -> None:
    gateway.state.leaving = True
    assert await status_and_code(gateway, "/health") == (200, None)
    assert await status_and_code(gateway, "/ready") == (503, "stopping")
