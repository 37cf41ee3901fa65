"""Requests of a batch while the engine dies, on a transport that simulates it."""

import time

import httpx
import pytest

from server.batches.lines import Request
from server.batches.sending import MAX_ATTEMPTS, EngineGone, send


class Engine(httpx.AsyncBaseTransport):
    """Dies in each of the first `deaths` requests; is ready again after `polls` polls."""

    def __init__(self, deaths: int, polls: int | None) -> None:
        self._deaths = deaths
        self._polls = polls
        self._left: int | None = 0
        self.requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/ready":
            return self._ready()
        self.requests += 1
        dead = self.requests <= self._deaths
        if dead:
            self._left = self._polls
        headers = {"x-request-id": f"id-{self.requests}"}
        return httpx.Response(503 if dead else 200, json={}, headers=headers)

    def _ready(self) -> httpx.Response:
        if self._left is None:
            return httpx.Response(503, json={"error": {"message": "Dead."}})
        self._left -= 1
        if self._left < 0:
            return httpx.Response(200, json={})
        return httpx.Response(503, json={}, headers={"retry-after": "60"})


@pytest.mark.parametrize(
    ("deaths", "status", "requests"),
    [(0, 200, 1), (1, 200, 2), (MAX_ATTEMPTS - 1, 200, MAX_ATTEMPTS), (9, 503, 3)],
)
async def test_a_request_is_sent_again_after_the_engine_died_and_came_back(
    monkeypatch: pytest.MonkeyPatch, deaths: int, status: int, requests: int
) -> None:
    # The number of polls does not matter.
    monkeypatch.setattr("server.batches.sending.READY_POLL_S", 0)
    engine = Engine(deaths, polls=50)
    async with httpx.AsyncClient(transport=engine, base_url="http://batch") as client:
        response = await send(client, Request(1, "a", "/v1/completions", b"{}"))
    assert response.status_code == status
    assert engine.requests == requests
    assert response.headers["x-request-id"] == f"id-{requests}"


async def test_a_request_is_sent_again_while_the_engine_has_no_room() -> None:
    wait_s = 0.02
    answers = [httpx.Response(429, headers={"retry-after": str(wait_s)})] * 9
    answers.append(httpx.Response(200))
    transport = httpx.MockTransport(lambda request: answers.pop(0))
    begun = time.monotonic()
    async with httpx.AsyncClient(transport=transport, base_url="http://batch") as client:
        response = await send(client, Request(1, "a", "/v1/completions", b"{}"))
    # uvloop counts in whole milliseconds.
    assert time.monotonic() - begun >= 9 * (wait_s - 0.001)
    assert (response.status_code, answers) == (200, [])


async def test_a_batch_does_not_wait_for_an_engine_that_is_not_replaced() -> None:
    async with httpx.AsyncClient(transport=Engine(1, None), base_url="http://batch") as client:
        with pytest.raises(EngineGone, match="Dead"):
            await send(client, Request(1, "a", "/v1/completions", b"{}"))
