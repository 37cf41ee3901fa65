"""The engine stops a request within a second after its client disconnects, in every phase.

The server has a batch of one sequence and small steps, so that a request can be caught in the queue
and during its prefill.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.e2e.served import Served, wait_until
from tests.e2e.traffic import chat, clients

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(900)]

BOUND_S = 1.0
LONG = 1500
"""Enough tokens for many seconds of work, which no client waits for."""

PROMPT_TOKENS = 1900
STEP_TOKENS = 48
"""Tokens of a prefill step: the prompt takes forty steps."""

FLAGS = ("--max-num-seqs", "1", "--max-num-batched-tokens", str(STEP_TOKENS))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served.start_beside(tmp_path_factory.mktemp("leave") / "server.log", *FLAGS)
    try:
        yield served
        assert served.stop() == 0, served.tail()
        assert "Traceback" not in served.log.read_text(errors="replace"), served.tail()
    finally:
        served.process.kill()


def load(served: Served) -> tuple[float, float]:
    """The numbers of running sequences, and of requests that wait for a slot or in the engine."""
    scrape = served.scrape()
    waiting = scrape("specgate_queued_requests") + scrape("vllm:num_requests_waiting")
    return scrape("vllm:num_requests_running"), waiting


async def begin(client: httpx.AsyncClient, path: str, body: Any) -> "asyncio.Task[Any]":
    """Sends a request and reads the response."""

    async def ask() -> None:
        async with client.stream("POST", path, json=body) as response:
            async for _ in response.aiter_bytes():
                pass

    return asyncio.create_task(ask())


async def leave(task: "asyncio.Task[Any]") -> float:
    """Closes the connection; returns the time in seconds."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return time.monotonic()


async def until(served: Served, running: int, waiting: int, seconds: float) -> None:
    """Waits until exactly these numbers of sequences run and wait."""
    what = f"{running} sequences run and {waiting} wait"
    await asyncio.to_thread(wait_until, lambda: load(served) == (running, waiting), seconds, what)


def tokens(served: Served) -> float:
    return served.scrape()("vllm:generation_tokens_total")


async def test_a_queued_request_stops_within_a_second(served: Served) -> None:
    async with clients(served.url) as client:
        ahead = await begin(client, "/v1/chat/completions", chat(0, max_tokens=LONG))
        await until(served, 1, 0, 10)
        for body in (chat(1), chat(1, stream=False, stream_options=None)):
            waiting = await begin(client, "/v1/chat/completions", body)
            await until(served, 1, 1, 10)
            left = await leave(waiting)
            await until(served, 1, 0, BOUND_S)
            assert time.monotonic() - left < BOUND_S
        await leave(ahead)
        await until(served, 0, 0, BOUND_S)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_in_prefill_stops_within_a_second(served: Served, stream: bool) -> None:
    before = tokens(served)
    # A prompt of no other test, so that none of it is in the prefix cache.
    prompt = [20 + (7 * i + stream) % 500 for i in range(PROMPT_TOKENS)]
    body = {"prompt": prompt, "max_tokens": 100, "ignore_eos": True, "stream": stream}
    async with clients(served.url) as client:
        reading = await begin(client, "/v1/completions", body)
        await until(served, 1, 0, 10)
        left = await leave(reading)
        await until(served, 0, 0, BOUND_S)
        assert time.monotonic() - left < BOUND_S
    assert tokens(served) == before


@pytest.mark.parametrize("proposer", ["none", "ngram", "draft"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_generating_request_stops_within_a_second(
    served: Served, stream: bool, proposer: str
) -> None:
    fields: dict[str, Any] = {"max_tokens": LONG, "spec_decode": {"proposer": proposer}}
    if not stream:
        fields |= {"stream": False, "stream_options": None}
    before = tokens(served)
    async with clients(served.url) as client:
        generating = await begin(client, "/v1/chat/completions", chat(2, **fields))
        await asyncio.to_thread(wait_until, lambda: tokens(served) > before, 20, "tokens come")
        left = await leave(generating)
        await until(served, 0, 0, BOUND_S)
        assert time.monotonic() - left < BOUND_S
    made = tokens(served)
    assert made - before < LONG / 2
    await asyncio.sleep(0.3)
    assert tokens(served) == made
