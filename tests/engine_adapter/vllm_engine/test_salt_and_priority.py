"""`cache_salt` and `priority` decide on blocks and on the order, never on the text."""

import asyncio
import random

import pytest

from tests.engine_adapter.vllm_engine.conftest import CHOICES, PROPOSERS, start
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Stock,
    generate,
    greedy,
    pinned,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

NAMES = ("none", "ngram", "draft", "self", "eagle")


async def test_salts_separate_the_prefix_cache_and_leave_the_text(
    live: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    prompt = max(prompts, key=len)[:300]
    for i, name in enumerate(NAMES):
        spec = pinned(name, CHOICES[name])
        first = await generate(live, prompt, greedy(24), spec, cache_salt=f"a{i}")
        again = await generate(live, prompt, greedy(24), spec, cache_salt=f"a{i}")
        other = await generate(live, prompt, greedy(24), spec, cache_salt=f"b{i}")
        assert (first.num_cached_tokens, other.num_cached_tokens) == (0, 0), name
        assert again.num_cached_tokens > 0
        assert first.tokens == again.tokens == other.tokens
        await stock.check(prompt, first.tokens)


async def test_preemption_by_priority_leaves_the_text(stock: Stock, prompts: list[Prompt]) -> None:
    live = await start(
        [fields for fields in PROPOSERS if fields["name"] in NAMES],
        num_gpu_blocks_override=16,
        max_num_batched_tokens=320,
        max_num_seqs=16,
        scheduling_policy="priority",
    )
    try:
        rng = random.Random(3)
        jobs = [(rng.choice(prompts), rng.choice(NAMES), rng.randint(-3, 3)) for _ in range(40)]
        results = await asyncio.gather(
            *(
                generate(live, prompt, greedy(150), pinned(name, CHOICES[name]), priority=priority)
                for prompt, name, priority in jobs
            )
        )
        for (prompt, _, _), result in zip(jobs, results, strict=True):
            await stock.check(prompt, result.tokens)
        assert live.metric("vllm:num_preemptions_total") > 0
        ends = [
            (priority, r.token_times[-1]) for (*_, priority), r in zip(jobs, results, strict=True)
        ]
        mean = {p: sum(t for q, t in ends if q == p) for p in (-3, 3)}
        count = {p: sum(q == p for q, _ in ends) for p in (-3, 3)}
        assert mean[-3] / count[-3] < mean[3] / count[3], "a lower priority ends earlier"
    finally:
        await live.engine.stop()
