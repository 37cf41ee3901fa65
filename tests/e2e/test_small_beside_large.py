"""A small request beside the largest ones that a server takes."""

import asyncio
import statistics
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.beside import p99, small, smalls
from tests.e2e.served import Served

pytestmark = [pytest.mark.engine, pytest.mark.prove]

COUNT, ROUNDS, TRIES = 24, 2, 3
LIMIT_S = 60.0
LONG = [[5 + (7 * i + 13 * j) % 900 for j in range(2000)] for i in range(256)]
LARGE: dict[str, dict[str, Any]] = {
    "`n` 128 with 16 prompts of 200 tokens": {
        "prompt": [prompt[:200] for prompt in LONG[:16]],
        "n": 128,
        "max_tokens": 200,
    },
    "`n` 128 with `logprobs` 20": {"prompt": LONG[0][:8], "n": 128, "logprobs": 20},
    "256 prompts of 2000 tokens, echoed with `logprobs` 5": {
        "prompt": LONG,
        "echo": True,
        "logprobs": 5,
        "max_tokens": 4,
    },
    "256 prompts of 2000 tokens": {"prompt": LONG, "max_tokens": 4},
}
REST: dict[str, Any] = {"max_tokens": 1000, "ignore_eos": True}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo in a server of its own."""
    served = Served.start_beside(tmp_path_factory.mktemp("beside") / "server.log")
    yield served
    assert served.stop() == 0, served.tail()


async def compare(url: str, body: dict[str, Any]) -> tuple[list[float], list[float]]:
    """The times of small requests alone, and beside a large one; in turns."""
    without, beside = [], []
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=LIMIT_S) as client:
        await small(client)
        for _ in range(ROUNDS):
            without += await smalls(client, COUNT)
            large = asyncio.create_task(client.post("/v1/completions", json=REST | body))
            await asyncio.sleep(1)
            beside += await smalls(client, COUNT)
            assert not large.done(), large.result().text[:300]
            large.cancel()
            await asyncio.gather(large, return_exceptions=True)
            await asyncio.sleep(1)
    return without, beside


def test_a_small_request_takes_at_most_three_times_as_long(alone: Served) -> None:
    rows, slow = ["| beside | now | alone |", "|---|---|---|"], []
    for name, body in LARGE.items():
        without, beside = asyncio.run(compare(alone.url, body))
        figures = [f"{statistics.median(t):.2f} / {p99(t):.2f}" for t in (beside, without)]
        rows.append(f"| {name} | {figures[0]} | {figures[1]} |")
        if p99(beside) > 3 * p99(without):
            slow.append(name)
    print("\n".join(rows))
    # One that was slow is tried again, because the machine may have been busy.
    for name in slow:
        ratios = []
        for _ in range(TRIES):
            without, beside = asyncio.run(compare(alone.url, LARGE[name]))
            ratios.append(p99(beside) / p99(without))
            if ratios[-1] <= 3:
                break
        assert min(ratios) <= 3, (name, ratios)
