"""Requests of `specgate batch` under which the engine dies, on a transport that plays it."""

import httpx
import pytest

from server.commands.batch import TRIES, EngineGone, ask
from server.commands.batch_files import Request


class Engine(httpx.AsyncBaseTransport):
    """Dies under the first so many requests, and is back after so many looks each time."""

    def __init__(self, deaths: int, looks: int | None) -> None:
        self._deaths = deaths
        self._looks = looks
        self._left: int | None = 0
        self.asked = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/ready":
            return self._ready()
        self.asked += 1
        dead = self.asked <= self._deaths
        if dead:
            self._left = self._looks
        headers = {"x-request-id": f"id-{self.asked}"}
        return httpx.Response(503 if dead else 200, json={}, headers=headers)

    def _ready(self) -> httpx.Response:
        if self._left is None:
            return httpx.Response(503, json={"error": {"message": "Dead."}})
        self._left -= 1
        if self._left < 0:
            return httpx.Response(200, json={})
        return httpx.Response(503, json={}, headers={"retry-after": "60"})


@pytest.mark.parametrize(
    ("deaths", "status", "asked"), [(0, 200, 1), (1, 200, 2), (TRIES - 1, 200, TRIES), (9, 503, 3)]
)
async def test_a_request_that_a_death_cuts_off_is_asked_again_once_the_engine_is_back(
    monkeypatch: pytest.MonkeyPatch, deaths: int, status: int, asked: int
) -> None:
    # However long that takes: only deaths count.
    monkeypatch.setattr("server.commands.batch.READY_POLL_S", 0)
    engine = Engine(deaths, looks=50)
    async with httpx.AsyncClient(transport=engine, base_url="http://batch") as client:
        entry = await ask(client, Request(1, "a", "/v1/completions", {}))
    assert entry["response"]["status_code"] == status
    assert engine.asked == asked
    assert entry["response"]["request_id"] == f"id-{asked}"


async def test_where_nothing_recovers_nothing_is_waited_for() -> None:
    async with httpx.AsyncClient(transport=Engine(1, None), base_url="http://batch") as client:
        with pytest.raises(EngineGone, match="Dead"):
            await ask(client, Request(1, "a", "/v1/completions", {}))
