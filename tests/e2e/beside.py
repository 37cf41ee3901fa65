"""Small requests that are sent regularly, to see what others make them wait for."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx

SMALL: dict[str, Any] = {"prompt": "def area(", "max_tokens": 16, "temperature": 0}
EVERY_S = 0.25


async def small(client: httpx.AsyncClient) -> float:
    """The time of a small request in seconds; it must succeed."""
    began = time.perf_counter()
    response = await client.post("/v1/completions", json=SMALL)
    assert response.status_code == 200, response.text
    return time.perf_counter() - began


async def smalls(client: httpx.AsyncClient, count: int) -> list[float]:
    """The times of so many small requests, one every `EVERY_S` seconds."""
    sent = []
    for _ in range(count):
        sent.append(asyncio.create_task(small(client)))
        await asyncio.sleep(EVERY_S)
    return await asyncio.gather(*sent)


def p99(times: Sequence[float]) -> float:
    """The slowest, without a single outlier in a hundred."""
    ranked = sorted(times)
    return ranked[max(0, int(len(ranked) * 0.99) - 1)]
