"""A proposer that fails on one of two ranks: no text changes, and the ranks stay together."""

import asyncio
from collections.abc import AsyncIterator
from importlib import import_module

import pytest
import pytest_asyncio

from engine_adapter.seam.types import GenerationRequest, SamplingOptions
from tests.engine_adapter.vllm_engine.conftest import TARGET, start
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Stock,
    generate,
    greedy,
    pinned,
)
from tests.engine_adapter.vllm_engine.worker.drafting.test_tensor_parallel import (
    ENVIRONMENT,
    check_logprobs,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]

LOSING = ("rank_0_loses", "rank_1_loses")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def faulty_ranks() -> AsyncIterator[Live]:
    """The target as its own draft model, whose sampled drafts one rank loses; and lookups."""
    module = import_module("tests.engine_adapter.vllm_engine.support.faulty")
    model = {"method": "faulty_draft", "model": TARGET, "num_speculative_tokens": 4}
    sampled = {"draft_tensor_parallel_size": 1, "draft_sampling": "probabilistic"}
    proposers = [{**model, **sampled, "name": name} for name in LOSING]
    proposers += [{"method": "faulty", "name": name} for name in module.RANK_WAYS]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        started = await start(
            proposers,
            tensor_parallel_size=2,
            kv_cache_memory_bytes=256 << 20,
            distributed_executor_backend=module.FaultyRanksExecutor,
        )
    yield started
    await started.engine.stop()


@pytest.mark.parametrize("name", [*LOSING, "rank_0_raises", "rank_1_raises"])
async def test_texts_are_the_targets_and_the_log_probabilities_are_those_of_the_texts(
    faulty_ranks: Live, stock: Stock, prompts: list[Prompt], name: str
) -> None:
    """A rank that had read another token would change the log probabilities of all that follow."""
    sampling = SamplingOptions(temperature=1.0, max_tokens=40, ignore_eos=True, logprobs=0)

    async def unseeded(prompt: Prompt) -> None:
        request = GenerationRequest(f"{name}-{prompt[:4]}", prompt, sampling, pinned(name, 4))
        deltas = faulty_ranks.engine.generate(request)
        entries = [entry.actual async for delta in deltas for entry in delta.logprobs or ()]
        assert len(entries) == 40
        await check_logprobs(stock, prompt, entries)

    async def exact(prompt: Prompt) -> None:
        result = await generate(faulty_ranks, prompt, greedy(40), pinned(name, 4))
        await stock.check(prompt, result.tokens)

    await asyncio.gather(*(unseeded(p) for p in prompts[:3]), *(exact(p) for p in prompts[3:6]))
    assert any(name in step.faults for step in faulty_ranks.recorder.steps) == ("rank_0" in name)
