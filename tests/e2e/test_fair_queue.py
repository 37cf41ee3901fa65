"""One API key floods the queue; another key is served, and nearly as fast as alone."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.e2e.beside import p99
from tests.e2e.served import ROOT, Served, environment

SECONDS = float(os.environ.get("QUEUE_S", "300"))

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(2 * SECONDS + 600)]

CONNECTIONS = 1100
THINK_S = 0.1
"""The flood sends a request again so long after a refusal: a client on a network that does not
heed `Retry-After`."""

PAUSE_S = 0.05
LIMITS = {"max_tokens": 16, "ignore_eos": True, "temperature": 0}
SMALL: dict[str, Any] = {"prompt": "def area(", **LIMITS}
FLOOD: dict[str, Any] = {"prompt": "word " * 400, **LIMITS}


@pytest.fixture
def served(tmp_path: Any) -> Iterator[Served]:
    """The fake engine with ten slots, whose steps take as long as those of a GPU."""
    arguments = json.dumps({"fake_step_ms": 20})
    keys = ("--named-api-key", "alice=key-alice", "--named-api-key", "bob=key-bob")
    flags = ("--max-num-seqs", "8", "--spec-method", "none", "--engine-args", arguments, *keys)
    server = Served.start_beside(tmp_path / "server.log", "--engine", "fake", *flags)
    yield server
    assert server.stop() == 0, server.tail()


@contextmanager
def flood(served: Served, statuses: dict[str, int]) -> Iterator[None]:
    """The flood of alice's, in a process of its own; its answers by status are in `statuses`."""
    port = served.url.rsplit(":", 1)[1]
    arguments = (port, "key-alice", str(CONNECTIONS), str(THINK_S), json.dumps(FLOOD))
    command = [sys.executable, "-m", "tests.e2e.flood", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "connected\n"
            yield
        finally:
            output, _ = process.communicate("", timeout=60)
    statuses.update(json.loads(output))


async def times_of_bob(url: str, seconds: float) -> list[float]:
    """The times of bob's requests, one at a time; each must succeed."""
    times: list[float] = []
    headers = {"authorization": "Bearer key-bob"}
    async with httpx.AsyncClient(
        base_url=url, trust_env=False, timeout=120, headers=headers
    ) as client:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            response = await client.post("/v1/completions", json=SMALL)
            times.append(time.perf_counter() - began)
            assert response.status_code == 200, response.text
            await asyncio.sleep(PAUSE_S)
    return times


def test_a_key_that_floods_the_queue_does_not_hold_up_another(served: Served) -> None:
    answers: dict[str, int] = {}
    part_s = max(10.0, SECONDS / 10)
    alone = asyncio.run(times_of_bob(served.url, part_s))
    with flood(served, answers):
        beside = asyncio.run(times_of_bob(served.url, SECONDS))
        queued = served.with_key("key-bob").scrape()("specgate_queued_requests")
    alone += asyncio.run(times_of_bob(served.url, part_s))
    print("| bob | requests | median (s) | p99 (s) | max (s) |\n|---|---|---|---|---|")
    for name, times in (("alone", alone), ("beside alice", beside)):
        figures = (statistics.median(times), p99(times), max(times))
        print(f"| {name} | {len(times)} |", " | ".join(f"{each:.3f}" for each in figures), "|")
    print(f"alice's answers: {answers}; queued at the end: {queued:.0f}")
    assert queued > 900
    assert answers["429"] > 10 * SECONDS
    assert answers["200"] > SECONDS
    assert statistics.median(beside) <= 3 * statistics.median(alone)
    assert p99(beside) <= 3 * p99(alone)
