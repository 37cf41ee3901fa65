"""Predicted outputs on a real engine: they are drafted and verified, and change no text."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine_adapter.seam.types import SamplingOptions, SpecDecodeParams
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Stock,
    generate,
    greedy,
    pinned,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

LENGTH = 60
K = 8
"""The draft capacity of the engines, the default k of the proposer `prediction`."""


def predicting(tokens: Sequence[int], k: int = K) -> SpecDecodeParams:
    return replace(pinned("prediction", k), prediction=tuple(tokens))


async def test_prediction_is_loaded_with_the_draft_capacity(live: Live) -> None:
    (info,) = (p for p in await live.engine.proposers() if p.method == "prediction")
    assert (info.name, info.num_speculative_tokens) == ("prediction", K)


async def test_a_correct_prediction_is_accepted_completely(
    live: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    texts = await stock.greedy(prompts, LENGTH)
    results = await asyncio.gather(
        *(
            generate(live, p, greedy(LENGTH), predicting(t))
            for p, t in zip(prompts, texts, strict=True)
        )
    )
    for prompt, result in zip(prompts, results, strict=True):
        await stock.check(prompt, result.tokens)
    right = [r for r, text in zip(results, texts, strict=True) if r.tokens == text]
    assert len(right) > len(texts) // 2
    for result in right:
        counts = result.counts("prediction")
        assert counts.accepted == counts.drafted
        # 59 tokens after the first in steps of 9.
        assert result.spec.decode_steps == 7


async def test_an_edited_prediction_costs_drafts_but_never_changes_the_text(
    live: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    rng = random.Random(7)
    texts = await stock.greedy(prompts, LENGTH)

    def edited(text: tuple[int, ...]) -> list[int]:
        tokens = list(text)
        at = rng.randrange(10, 30)
        tokens[at] = rng.randrange(3, 2000)
        del tokens[at + 8 : at + 10]
        return [rng.randrange(3, 2000) for _ in range(5)] + tokens

    results = await asyncio.gather(
        *(
            generate(live, p, greedy(LENGTH), predicting(edited(t)))
            for p, t in zip(prompts, texts, strict=True)
        )
    )
    for prompt, result in zip(prompts, results, strict=True):
        await stock.check(prompt, result.tokens)
        counts = result.counts("prediction")
        assert 0 < counts.accepted <= counts.drafted
        assert result.spec.decode_steps < 30, "the prediction must be found again after each edit"


async def test_a_seeded_text_does_not_depend_on_its_prediction(
    live: Live, prompts: list[Prompt]
) -> None:
    sampled = SamplingOptions(temperature=0.8, seed=4, max_tokens=LENGTH, ignore_eos=True)
    plain = await generate(live, prompts[0], sampled, pinned("none", 0))
    for tokens in (plain.tokens, plain.tokens[7:], plain.tokens[::-1], ()):
        assert (
            await generate(live, prompts[0], sampled, predicting(tokens))
        ).tokens == plain.tokens


async def test_predictions_survive_preemption_and_chunked_prefill(
    cramped: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    many = (prompts * 2)[:32]
    texts = await stock.greedy(many, LENGTH)
    results = await asyncio.gather(
        *(
            generate(cramped, p, greedy(LENGTH), predicting(t))
            for p, t in zip(many, texts, strict=True)
        )
    )
    for prompt, result in zip(many, results, strict=True):
        await stock.check(prompt, result.tokens)
    accepted = sum(result.counts("prediction").accepted for result in results)
    drafted = sum(result.counts("prediction").drafted for result in results)
    assert accepted > 0.9 * drafted > 0


async def test_without_a_prediction_nothing_is_drafted(live: Live, prompts: list[Prompt]) -> None:
    result = await generate(live, prompts[0], greedy(20), pinned("prediction", K))
    assert not result.spec.by_proposer
