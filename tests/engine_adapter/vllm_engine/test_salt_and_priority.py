"""`cache_salt` and `priority` decide on blocks and on the order, never on the text."""

import asyncio
import itertools
import random
from statistics import mean

import pytest

from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.conftest import CHOICES
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

    async def check(i: int, name: str) -> None:
        spec = pinned(name, CHOICES[name])
        first = await generate(live, prompt, greedy(24), spec, cache_salt=f"a{i}")
        again = await generate(live, prompt, greedy(24), spec, cache_salt=f"a{i}")
        other = await generate(live, prompt, greedy(24), spec, cache_salt=f"b{i}")
        assert (first.num_cached_tokens, other.num_cached_tokens) == (0, 0), name
        assert again.num_cached_tokens > 0
        assert first.tokens == again.tokens == other.tokens
        await stock.check(prompt, first.tokens)

    await asyncio.gather(*(check(i, name) for i, name in enumerate(NAMES)))


@pytest.mark.parametrize("jobs", proved_beyond([24], [24, 120]))
async def test_preemption_by_priority_leaves_the_text(
    cramped: Live, stock: Stock, prompts: list[Prompt], jobs: int
) -> None:
    rng = random.Random(3)
    asked = [
        (rng.choice(prompts), rng.choice(NAMES), priority)
        for _, priority in zip(range(jobs), itertools.cycle((-3, 0, 3)), strict=False)
    ]
    before = cramped.metric("vllm:num_preemptions_total")
    results = await asyncio.gather(
        *(
            generate(cramped, prompt, greedy(60), pinned(name, CHOICES[name]), priority=priority)
            for prompt, name, priority in asked
        )
    )
    for (prompt, _, _), result in zip(asked, results, strict=True):
        await stock.check(prompt, result.tokens)
    assert cramped.metric("vllm:num_preemptions_total") > before
    ends = {
        level: mean(
            result.token_times[-1]
            for (*_, priority), result in zip(asked, results, strict=True)
            if priority == level
        )
        for level in (-3, 3)
    }
    assert ends[-3] < ends[3], "a lower priority ends earlier"


@pytest.mark.parametrize("name", proved_beyond(["eagle"], NAMES))
async def test_a_prompt_is_read_again_after_the_prefix_cache_is_emptied(
    live: Live, stock: Stock, prompts: list[Prompt], name: str
) -> None:
    prompt = max(prompts, key=len)[:300]
    cached, tokens = [], set()
    for _ in range(2):
        assert await live.engine.reset_prefix_cache()
        for _ in range(2):
            result = await generate(live, prompt, greedy(24), pinned(name, CHOICES[name]))
            cached.append(result.num_cached_tokens > 0)
            tokens.add(tuple(result.tokens))
    assert cached == [False, True, False, True]
    assert len(tokens) == 1
    await stock.check(prompt, result.tokens)
