"""All at once in an engine with little KV: preemption, chunked prefill, prefix hits, switches."""

import asyncio
import random

import pytest

from engine_adapter.seam.types import GenerationRequest, SpecDecodeParams
from tests.engine_adapter.vllm_engine.conftest import CHOICES
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Result,
    Stock,
    generate,
    greedy,
    pinned,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

LENGTHS = (24, 48, 96)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(5))
async def test_a_thousand_random_requests_are_exact(
    cramped: Live, stock: Stock, prompts: list[Prompt], seed: int
) -> None:
    await fuzz(cramped, stock, prompts, requests=1000, seed=seed)


async def fuzz(
    cramped: Live, stock: Stock, prompts: list[Prompt], *, requests: int, seed: int
) -> None:
    """Random prompts, lengths, proposers and k, twelve at a time, under random switches."""
    rng = random.Random(seed)
    first_epoch = cramped.epoch
    done: list[tuple[Prompt, Result]] = []
    method = await cramped.switch("none")
    slots = asyncio.Semaphore(12)

    async def one(i: int) -> None:
        # Of its own, so that neither the other requests nor the switches change what it asks.
        own = random.Random(f"{seed}-{i}")
        async with slots:
            prompt, length = own.choice(prompts), own.choice(LENGTHS)
            # Enough drafts to compare, also on a machine on which hardly a switch falls in the run.
            name = "self" if i % 4 == 0 else own.choice(list(CHOICES))
            spec = SpecDecodeParams(method, switch_epoch=cramped.epoch)
            if i % 4 == 0 or own.random() < 0.6:
                spec = pinned(name, own.randint(min(1, CHOICES[name]), CHOICES[name]))
            if own.random() < 0.1:
                await abandon(i, prompt, spec)
            else:
                done.append((prompt, await generate(cramped, prompt, greedy(length), spec)))

    async def abandon(i: int, prompt: Prompt, spec: SpecDecodeParams) -> None:
        request = GenerationRequest(
            f"abandoned-in-stress-{seed}-{requests}-{i}", prompt, greedy(96), spec
        )
        stream = cramped.engine.generate(request)
        async for _ in stream:
            break
        await stream.aclose()

    async def switcher() -> None:
        nonlocal method
        while True:
            # By the engine's steps: they are as many on every machine.
            await cramped.recorder.more(rng.randint(1, 12))
            name = rng.choice(list(CHOICES))
            method = await cramped.switch(name, CHOICES[name], running=rng.random() < 0.7)

    switching = asyncio.create_task(switcher())
    await asyncio.gather(*(one(i) for i in range(requests)))
    switching.cancel()

    assert len(done) > 0.8 * requests
    await stock.greedy(prompts, max(LENGTHS))
    for prompt, result in done:
        await stock.check(prompt, result.tokens)
        counts = result.counts("self")
        assert counts.accepted == counts.drafted
    assert sum(result.counts("self").drafted for _, result in done) > 2 * requests
    assert cramped.metric("vllm:num_preemptions_total") > 0
    assert cramped.metric("vllm:prefix_cache_hits_total") > 0
    assert cramped.epoch - first_epoch > 10
