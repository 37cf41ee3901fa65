"""Loads of two hundred switches under sixteen streams leak no memory, descriptors or threads."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from demo import model_path
from tests.e2e.greedy import Plain, plain
from tests.e2e.served import Served
from tests.e2e.test_switching_http import STREAMS, Load
from tests.e2e.traffic import chat, clients, gather

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(1800)]

ROUND_TRIPS, LOADS = 200, 15
"""Round trips of a load, and the most loads."""

SHAPES = 160
"""Prompt lengths of the warm-up. On CPU, vLLM keeps for every weight matrix a oneDNN primitive for
each number of rows, up to 128 (`vllm._custom_ops.create_onednn_mm`), so the engine grows until it
has seen them all."""

MEMORY_BYTES = 2 << 20
"""The most that resident memory may grow in a load: 5 kB per switch. A leak of a switch shows in
every load, first-time allocations in fewer and fewer: one load without growth is enough."""

PROPOSERS = [
    {"name": "ngram", "num_speculative_tokens": 5},
    # By default it caches the responses to ten thousand requests, and grows until then.
    {"name": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_cached_requests": 16},
    {
        "name": "draft",
        "method": "draft_model",
        "model": str(model_path("draft")),
        "num_speculative_tokens": 4,
    },
    {
        "name": "draft-small",
        "method": "draft_model",
        "model": str(model_path("draft-small")),
        "num_speculative_tokens": 4,
    },
]
METHODS = [str(proposer["name"]) for proposer in PROPOSERS]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = [part for proposer in PROPOSERS for part in ("--proposer", json.dumps(proposer))]
    log = tmp_path_factory.mktemp("growth") / "server.log"
    # Small, so that the warm-up touches all of it: untouched pages are not resident.
    flags += ["--kv-cache-memory-bytes", "64MiB", "--no-access-log"]
    served = Served.start_beside(log, *flags)
    try:
        yield served
        assert served.stop() == 0, served.tail()
    finally:
        served.process.kill()


@dataclass(frozen=True)
class Size:
    """The resources of a process while no request runs."""

    memory_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, process: psutil.Process) -> "Size":
        return cls(process.memory_info().rss, _descriptors(process), process.num_threads())


def _descriptors(process: psutil.Process) -> int:
    """The minimum of two seconds: connections are closed a little after their client."""
    samples = []
    for _ in range(20):
        samples.append(process.num_fds())
        time.sleep(0.1)
    return min(samples)


def sizes(served: Served) -> dict[str, Size]:
    """The sizes of both processes, when idle."""
    served.wait_until_idle()
    gateway = psutil.Process(served.process.pid)
    return {"gateway": Size.of(gateway), "engine": Size.of(served.engine)}


async def all_shapes(served: Served) -> None:
    """Sends prompts of every length to the target and both draft models, one by one."""
    rng = random.Random(0)
    async with clients(served.url) as client:
        for length in range(1, SHAPES + 1):
            for name in ("draft", "draft-small"):
                body = {
                    "prompt": [rng.randrange(300, 1800) for _ in range(length)],
                    "max_tokens": 4,
                    "ignore_eos": True,
                    "spec_decode": {"proposer": name},
                }
                response = await client.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text


async def switched_load(served: Served, plain_texts: list[Plain]) -> None:
    """Switches while sixteen clients stream; every text must be exact."""
    async with clients(served.url) as client:
        load = Load(client)
        running = [asyncio.create_task(load.run(i)) for i in range(STREAMS)]
        for i in range(ROUND_TRIPS):
            for name in (METHODS[i % len(METHODS)], "none"):
                await asyncio.to_thread(served.switch, name)
                await asyncio.sleep(0.02)
        load.stopping = True
        results = await gather(*(asyncio.wait_for(task, 120) for task in running))
    for expected, of_client in zip(plain_texts, results, strict=True):
        assert of_client
        for result in of_client:
            assert result.tokens == 48
            assert expected.allows(result.text), (expected.text, result.text)


async def test_two_hundred_switches_leak_nothing(served: Served) -> None:
    async with clients(served.url) as client:
        plain_texts = await gather(*(plain(client, chat(5 * i)) for i in range(STREAMS)))
    await all_shapes(served)
    samples = [await asyncio.to_thread(sizes, served)]
    for _ in range(LOADS):
        await switched_load(served, plain_texts)
        samples.append(await asyncio.to_thread(sizes, served))
        print(samples[-1])
        before, after = samples[-2:]
        if all(after[p].memory_bytes - before[p].memory_bytes < MEMORY_BYTES for p in after):
            break
    else:
        pytest.fail(f"memory grows in every load: {samples}")
    for process, last in samples[-1].items():
        assert last.descriptors <= samples[0][process].descriptors, (process, samples)
        assert last.threads <= samples[0][process].threads, (process, samples)
    shown = served.get("/v1/spec_method").json()
    assert shown["generation"] == (len(samples) - 1) * 2 * ROUND_TRIPS
