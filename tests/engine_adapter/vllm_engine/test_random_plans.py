"""Every proposer in one engine, another one for each row in each step, on one rank and on two.

Greedy output is stock vLLM's under preemption, chunked prefill, prefix hits and aborts, with every
proposer. All drafts of the target for itself are accepted, also after steps of other proposers.

A fault that shows in one step of a hundred is missed by 400 steps with a probability of 2 %, one in
thirty by 100 steps with 3 %, if steps are independent. `make prove` runs 10,000 and 2,000 steps.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from engine_adapter.counts import ProposerCounts
from engine_adapter.types import GenerationRequest, SpecDecodeParams, SpecMethod
from engine_adapter.vllm_engine.gateway import arguments
from tests.engine_adapter.vllm_engine.conftest import PROPOSERS, TARGET, start
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Result,
    Stock,
    generate,
    greedy,
)
from tests.engine_adapter.vllm_engine.worker.drafting.test_tensor_parallel import ENVIRONMENT

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(3600),
]

ON_TWO_RANKS: list[dict[str, Any]] = [
    {
        "name": "whole",
        "method": "draft_model",
        "model": TARGET,
        "num_speculative_tokens": 4,
        "draft_tensor_parallel_size": 1,
    }
]
LENGTHS = (24, 48, 96)


@asynccontextmanager
async def random_plans(
    proposers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> AsyncIterator[Live]:
    """An engine with little KV that plans at random."""
    # Its import takes vLLM's, which a run without engines need not wait for.
    from tests.engine_adapter.vllm_engine.support.random_plans import RandomPlanScheduler

    built = arguments.engine_args

    def with_random_plans(*args: Any) -> Any:
        made = built(*args)
        made.scheduler_cls = RandomPlanScheduler
        return made

    monkeypatch.setattr(arguments, "engine_args", with_random_plans)
    started = await start(
        proposers,
        num_gpu_blocks_override=22,
        max_num_batched_tokens=320,
        max_num_seqs=16,
        **options,
    )
    yield started
    await started.engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def one_rank() -> AsyncIterator[Live]:
    """Every method."""
    with pytest.MonkeyPatch.context() as patch:
        async with random_plans(PROPOSERS, patch) as live:
            yield live


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two_ranks() -> AsyncIterator[Live]:
    """The same, and a draft model that is whole on each rank."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        proposers = [*PROPOSERS, *ON_TWO_RANKS]
        async with random_plans(proposers, patch, tensor_parallel_size=2) as live:
            yield live


async def test_four_hundred_steps_on_one_rank(
    one_rank: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    await fuzz(one_rank, stock, prompts, steps=400)


async def test_a_hundred_steps_on_two_ranks(
    two_ranks: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    await fuzz(two_ranks, stock, prompts, steps=100)


@pytest.mark.prove
async def test_ten_thousand_steps_on_one_rank(
    one_rank: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    await fuzz(one_rank, stock, prompts, steps=10_000)


@pytest.mark.prove
async def test_two_thousand_steps_on_two_ranks(
    two_ranks: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    await fuzz(two_ranks, stock, prompts, steps=2_000)


async def fuzz(live: Live, stock: Stock, prompts: list[Prompt], *, steps: int) -> None:
    """Random prompts and lengths, twelve at a time, a tenth of them abandoned."""
    rng = random.Random(steps)
    began = len(live.recorder.steps)
    # Any method but plain decoding: the scheduler draws the proposer.
    drafted = SpecDecodeParams(SpecMethod("self", 5), pinned=True)
    done: list[tuple[Prompt, Result]] = []

    async def serve(worker: int) -> None:
        for i in range(steps):
            if len(live.recorder.steps) - began >= steps:
                return
            prompt, length = rng.choice(prompts), rng.choice(LENGTHS)
            if rng.random() < 0.1:
                await abandon(f"abandoned-{steps}-{worker}-{i}", prompt)
            else:
                done.append((prompt, await generate(live, prompt, greedy(length), drafted)))

    async def abandon(request_id: str, prompt: Prompt) -> None:
        stream = live.engine.generate(GenerationRequest(request_id, prompt, greedy(96), drafted))
        async for _ in stream:
            break
        await stream.aclose()

    await asyncio.gather(*(serve(worker) for worker in range(12)))

    await stock.greedy(prompts, max(LENGTHS))
    for prompt, result in done:
        await stock.check(prompt, result.tokens)
    totals = live.recorder.totals(began)
    infos = await live.engine.proposers()
    for info in infos:
        counts = totals.get(info.name, ProposerCounts())
        if info.model == TARGET:
            assert counts.accepted == counts.drafted > steps / 10
        elif info.name != "prediction":  # no request has a prediction
            assert counts.drafted > steps / 20, info.name
    assert {info.state for info in infos} == {"loaded"}
    assert live.metric("vllm:num_preemptions_total") > 0
    assert live.metric("vllm:prefix_cache_hits_total") > 0
