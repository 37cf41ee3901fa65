"""Greedy output is stock vLLM's, with each proposer, separately and mixed in one batch."""

import asyncio

import pytest

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

LENGTH = 40


@pytest.mark.parametrize("name", CHOICES)
async def test_output_is_stock_vllms(
    live: Live, stock: Stock, prompts: list[Prompt], name: str
) -> None:
    spec = pinned(name, CHOICES[name])
    results = await asyncio.gather(*(generate(live, p, greedy(LENGTH), spec) for p in prompts))
    await stock.greedy(prompts, LENGTH)
    for prompt, result in zip(prompts, results, strict=True):
        assert len(result.tokens) == LENGTH
        await stock.check(prompt, result.tokens)
        assert set(result.spec.by_proposer) <= {name}
        assert result.spec.decode_tokens == LENGTH - 1


async def test_all_drafts_of_the_target_for_itself_are_accepted(
    live: Live, prompts: list[Prompt]
) -> None:
    results = await asyncio.gather(
        *(generate(live, p, greedy(LENGTH), pinned("self", 5)) for p in prompts)
    )
    for result in results:
        counts = result.counts("self")
        assert counts.drafted > 0
        assert counts.accepted == counts.drafted
        # 39 tokens after the first in steps of 6: seven steps, and every draft accepted.
        assert result.spec.decode_steps == 7


async def test_rows_of_every_proposer_count_only_their_own_drafts(
    live: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    since = len(live.recorder.steps)
    results = await asyncio.gather(
        *(generate(live, prompts[0], greedy(64), pinned(name, k)) for name, k in CHOICES.items())
    )
    mixed = [s for s in live.recorder.steps[since:] if len(set(s.verified) - {"none"}) >= 3]
    assert mixed, "the rows were never in one batch"
    for name, result in zip(CHOICES, results, strict=True):
        await stock.check(prompts[0], result.tokens)
        assert set(result.spec.by_proposer) <= {name}
    totals = live.recorder.totals(since)
    for name, result in zip(CHOICES, results, strict=True):
        if name != "none":
            assert result.counts(name) == totals[name]
    assert all(totals[name].drafted > 0 for name in ("suffix", "draft", "self"))


@pytest.mark.parametrize("k", [1, 2, 3])
async def test_k_of_a_request_is_the_most_it_drafts(
    live: Live, stock: Stock, prompts: list[Prompt], k: int
) -> None:
    result = await generate(live, prompts[1], greedy(30), pinned("self", k))
    await stock.check(prompts[1], result.tokens)
    counts = result.counts("self")
    assert counts.drafted <= k * counts.drafts
    assert len(counts.accepted_per_position) == k


async def test_rows_of_one_proposer_with_different_k_share_a_batch(
    live: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    ks = [1, 5, 2, 4, 3]
    results = await asyncio.gather(
        *(
            generate(live, p, greedy(LENGTH), pinned("self", k))
            for p, k in zip(prompts, ks, strict=False)
        )
    )
    for prompt, k, result in zip(prompts, ks, results, strict=False):
        await stock.check(prompt, result.tokens)
        counts = result.counts("self")
        assert counts.accepted == counts.drafted
        assert len(counts.accepted_per_position) == k
