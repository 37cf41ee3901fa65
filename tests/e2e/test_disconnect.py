"""When a client disconnects, the engine stops the sequences of its request before they would end.

`test_disconnect_within_a_second` measures how soon."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.e2e.served import Served, wait_until
from tests.e2e.traffic import chat, clients, gather, leave

pytestmark = pytest.mark.engine

LONG = 1500
"""Enough tokens for seconds of work, which no client waits for."""


def endings(served: Served) -> float:
    """Sequences that ended by themselves."""
    scrape = served.scrape()
    reasons = scrape.by("finished_reason", "vllm:request_success_total")
    return reasons["stop"] + reasons["length"]


@pytest.mark.parametrize("proposer", ["none", "ngram", "draft"])
async def test_closing_a_stream_ends_its_sequences(served: Served, proposer: str) -> None:
    before = endings(served)
    body = chat(0, max_tokens=LONG, spec_decode={"proposer": proposer})
    async with clients(served.url) as client:
        await gather(*(leave(client, body) for _ in range(3)))
    await asyncio.to_thread(served.wait_until_idle)
    assert endings(served) == before


async def test_closing_a_stream_of_two_choices_ends_both(served: Served) -> None:
    before = endings(served)
    async with clients(served.url) as client:
        await leave(client, chat(1, max_tokens=LONG, n=2, temperature=0.8), events=8)
    await asyncio.to_thread(served.wait_until_idle)
    assert endings(served) == before


@pytest.mark.parametrize("n", [1, 2])
async def test_disconnecting_from_a_whole_response_ends_its_sequences(
    served: Served, n: int
) -> None:
    before = endings(served)
    body: dict[str, Any] = chat(2, max_tokens=LONG, stream=False, stream_options=None, n=n)
    async with clients(served.url) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        running = "vllm:num_requests_running"
        await asyncio.to_thread(
            wait_until, lambda: served.scrape()(running) == n, 30, f"{n} sequences run"
        )
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.to_thread(served.wait_until_idle)
    assert endings(served) == before
    gone = {"route": "/v1/chat/completions", "status": "499"}
    assert served.scrape()("specgate_http_requests_total", **gone) >= 1


async def test_a_disconnect_does_not_change_other_responses(served: Served) -> None:
    body = chat(3, stream=False, stream_options=None)
    async with clients(served.url) as client:
        alone = (await client.post("/v1/chat/completions", json=body)).json()
        beside = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await gather(*(leave(client, chat(i, max_tokens=LONG)) for i in range(4)))
        answer: httpx.Response = await beside
    assert answer.json()["choices"][0]["message"] == alone["choices"][0]["message"]
    await asyncio.to_thread(served.wait_until_idle)
