"""One API key has far more long requests than the engine runs; another key is served at once."""

import asyncio
import statistics
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.beside import p99, small, smalls
from tests.e2e.served import Served

pytestmark = [pytest.mark.engine, pytest.mark.prove]

LONG: dict[str, Any] = {"prompt": "def area(", "max_tokens": 1500, "ignore_eos": True}
REQUESTS, COUNT, TRIES = 300, 48, 3


@pytest.fixture
def served(tmp_path: Any) -> Iterator[Served]:
    """The demo with eight sequences at a time, and two keys."""
    keys = ("--named-api-key", "alice=key-alice", "--named-api-key", "bob=key-bob")
    server = Served.start_beside(tmp_path / "server.log", "--max-num-seqs", "8", *keys)
    yield server
    assert server.stop() == 0, server.tail()


def client(url: str, name: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer key-{name}"}
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(
        base_url=url, trust_env=False, timeout=None, headers=headers, limits=limits
    )


async def compare(url: str) -> tuple[list[float], list[float]]:
    """The times of bob's small requests alone, and beside alice's long ones."""
    async with client(url, "alice") as alice, client(url, "bob") as bob:
        await small(bob)
        alone = await smalls(bob, COUNT)
        long = [
            asyncio.create_task(alice.post("/v1/completions", json=LONG)) for _ in range(REQUESTS)
        ]
        await asyncio.sleep(2)
        beside = await smalls(bob, COUNT)
        answered = sum(task.done() for task in long)
        for task in long:
            task.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        await asyncio.sleep(1)
    assert answered < REQUESTS / 2
    return alone, beside


def test_long_requests_of_a_key_do_not_hold_up_another(served: Served) -> None:
    ratios = []
    for _ in range(TRIES):  # the machine may be busy
        alone, beside = asyncio.run(compare(served.url))
        print("| bob | median (s) | p99 (s) | max (s) |\n|---|---|---|---|")
        for name, times in (("alone", alone), ("beside alice", beside)):
            figures = (statistics.median(times), p99(times), max(times))
            print(f"| {name} |", " | ".join(f"{each:.2f}" for each in figures), "|")
        ratios.append(p99(beside) / p99(alone))
        if ratios[-1] <= 3:
            break
    assert min(ratios) <= 3, ratios
