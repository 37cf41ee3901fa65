"""Sampled output is the target's own, whatever drafts: token for token under a seed."""

import asyncio
from typing import Any

import pytest

from engine_adapter.interface import SamplingOptions
from tests.engine_adapter.vllm_engine.live import Live, Prompt, generate, greedy, pinned

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

DRAFTING = {"ngram": 5, "suffix": 8, "draft": 4, "self": 5}
OPTIONS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1.3},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "top_k": {"temperature": 1.0, "top_k": 20},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.4},
    "min_tokens": {"temperature": 1.0, "min_tokens": 20, "ignore_eos": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_a_seed_gives_the_text_of_plain_decoding_whatever_drafts(
    live: Live, prompts: list[Prompt], options: dict[str, Any]
) -> None:
    def sampled(seed: int) -> SamplingOptions:
        return SamplingOptions(**({"max_tokens": 40, "ignore_eos": True, "seed": seed} | options))

    plain = await asyncio.gather(
        *(generate(live, p, sampled(i), pinned("none", 0)) for i, p in enumerate(prompts[:6]))
    )
    mixed = await asyncio.gather(
        *(
            generate(live, p, sampled(i), pinned(name, k))
            for i, p in enumerate(prompts[:6])
            for name, k in DRAFTING.items()
        ),
        generate(live, prompts[6], greedy(40), pinned("self", 5)),
    )
    for i, result in enumerate(mixed[:-1]):
        assert result.tokens == plain[i // len(DRAFTING)].tokens
    assert sum(result.spec.by_proposer["self"].accepted for result in mixed[3:-1:4]) > 0
    assert len({result.tokens for result in plain}) == len(plain)


async def test_greedy_rows_are_greedy_beside_sampled_ones(
    live: Live, prompts: list[Prompt]
) -> None:
    alone = await generate(live, prompts[0], greedy(40), pinned("self", 5))
    hot = SamplingOptions(temperature=1.5, max_tokens=40, ignore_eos=True)
    beside, *_ = await asyncio.gather(
        generate(live, prompts[0], greedy(40), pinned("self", 5)),
        *(generate(live, p, hot, pinned("self", 5)) for p in prompts[1:6]),
    )
    assert beside.tokens == alone.tokens


async def test_without_a_seed_texts_differ(live: Live, prompts: list[Prompt]) -> None:
    hot = SamplingOptions(temperature=2.0, max_tokens=40, ignore_eos=True)
    results = await asyncio.gather(
        *(generate(live, prompts[8], hot, pinned("self", 5)) for _ in range(4))
    )
    assert len({result.tokens for result in results}) == 4


async def test_logprobs_are_the_same_whatever_drafts(live: Live, prompts: list[Prompt]) -> None:
    async def logprobs(name: str, k: int) -> list[tuple[int, float, int]]:
        from engine_adapter.interface import GenerationRequest

        request = GenerationRequest(
            f"logprobs-{name}", prompts[0], greedy(24, logprobs=3), pinned(name, k)
        )
        entries = [
            entry async for delta in live.engine.generate(request) for entry in delta.logprobs or ()
        ]
        return [(e.chosen.token_id, e.chosen.logprob, len(e.top)) for e in entries]

    plain = await logprobs("none", 0)
    assert len(plain) == 24
    assert {count for *_, count in plain} == {3}
    for name, k in DRAFTING.items():
        drafted = await logprobs(name, k)
        assert [(t, c) for t, _, c in drafted] == [(t, c) for t, _, c in plain]
        assert [p for _, p, _ in drafted] == pytest.approx([p for _, p, _ in plain], abs=1e-4)
