"""Confidence gates on a real engine: fewer drafts, the same text, and drafts that are as good."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from demo import model_path
from engine_adapter.seam.types import SamplingOptions
from tests.engine_adapter.vllm_engine.conftest import TARGET, start
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Result,
    Stock,
    generate,
    greedy,
    pinned,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.asyncio(loop_scope="session"),
]

K = 5
LENGTH = 64
MODELS: dict[str, dict[str, Any]] = {
    "draft": {"method": "draft_model", "model": str(model_path("draft"))},
    "self": {"method": "draft_model", "model": TARGET},
    "eagle": {"method": "eagle", "model": str(model_path("eagle"))},
    "eagle3": {"method": "eagle3", "model": str(model_path("eagle3"))},
    "medusa": {"method": "medusa", "model": str(model_path("medusa"))},
    "mlp": {"method": "mlp_speculator", "model": str(model_path("mlp-speculator"))},
}
MOST = {"medusa": 4, "mlp": 4}
"""The largest k of heads that have fewer steps."""


def k_of(name: str) -> int:
    return MOST.get(name, K)


def proposers() -> list[dict[str, Any]]:
    """Each model without a gate, and as `NAME-sure` with one; a cascade that continues after it."""
    made = [
        {"name": name + suffix, "num_speculative_tokens": k_of(name), **fields, **gate}
        for name, fields in MODELS.items()
        for suffix, gate in (("", {}), ("-sure", {"min_confidence": 0.4}))
    ]
    return [*made, {"name": "both", "method": "cascade", "members": ["draft-sure", "medusa"]}]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gated() -> AsyncIterator[Live]:
    started = await start(proposers(), kv_cache_memory_bytes=1 << 30)
    yield started
    await started.engine.stop()


async def run(live: Live, prompts: Sequence[Prompt], name: str, **options: Any) -> list[Result]:
    sampling = greedy(LENGTH) if not options else SamplingOptions(max_tokens=LENGTH, **options)
    k = k_of(name.removesuffix("-sure"))
    return await asyncio.gather(*(generate(live, p, sampling, pinned(name, k)) for p in prompts))


def steps(results: Sequence[Result]) -> int:
    return sum(result.spec.decode_steps for result in results)


def totals(results: Sequence[Result], name: str) -> tuple[int, int]:
    """Drafted and accepted tokens."""
    counts = [result.counts(name) for result in results]
    return sum(c.drafted for c in counts), sum(c.accepted for c in counts)


@pytest.mark.parametrize("name", MODELS)
async def test_a_gate_saves_drafts_that_would_be_rejected(
    gated: Live, stock: Stock, prompts: list[Prompt], name: str
) -> None:
    free = await run(gated, prompts[:8], name)
    sure = await run(gated, prompts[:8], f"{name}-sure")
    for prompt, one, other in zip(prompts[:8], free, sure, strict=True):
        await stock.check(prompt, one.tokens)
        await stock.check(prompt, other.tokens)
    drafted, accepted = totals(free, name)
    drafted_sure, accepted_sure = totals(sure, f"{name}-sure")
    assert drafted_sure / steps(sure) < drafted / steps(free)
    # What is left is better than what was saved; the target's own drafts are all accepted.
    share, share_sure = accepted / drafted, accepted_sure / drafted_sure
    assert share_sure > share or share_sure == share == 1.0


async def test_texts_with_a_seed_are_those_of_plain_decoding(
    gated: Live, prompts: list[Prompt]
) -> None:
    options = {"temperature": 0.9, "seed": 3, "ignore_eos": True}
    plain, *drafted = [
        await run(gated, prompts[:4], name, **options)
        for name in ("none", "draft-sure", "eagle3-sure", "mlp-sure")
    ]
    for results in drafted:
        assert [result.tokens for result in results] == [result.tokens for result in plain]


async def test_a_cascade_drafts_where_the_gate_lets_nothing_through(
    gated: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    sure = await run(gated, prompts[:8], "draft-sure")
    both = await run(gated, prompts[:8], "both")
    for prompt, result in zip(prompts[:8], both, strict=True):
        await stock.check(prompt, result.tokens)
    assert share_of_drafting_steps(sure, "draft-sure") < 0.95
    assert share_of_drafting_steps(both, "both") > 0.95


def share_of_drafting_steps(results: Sequence[Result], name: str) -> float:
    drafts = sum(result.counts(name).drafts for result in results)
    return drafts / steps(results)


async def test_drafts_of_the_target_itself_are_all_accepted_after_passes_were_saved(
    gated: Live, prompts: list[Prompt]
) -> None:
    """So no KV is taken for written that was not: rows leave the passes at different depths."""
    results = await run(gated, prompts[:12], "self-sure")
    drafted, accepted = totals(results, "self-sure")
    assert drafted > 500
    assert accepted >= 0.99 * drafted
