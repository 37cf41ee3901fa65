"""The least tokens per step that the demo models must reach on their held-out prompts."""

import asyncio
from functools import cache
from typing import Any

import pytest
from transformers import AutoTokenizer

from demo.prompts import load_prompts
from engine_adapter.seam.types import SamplingOptions
from tests.engine_adapter.vllm_engine.conftest import TARGET
from tests.engine_adapter.vllm_engine.support.live import Live, Result, generate, pinned

pytestmark = [pytest.mark.prove, pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TARGET)


async def answers(live: Live, kind: str, temperature: float, name: str, k: int) -> list[Result]:
    """The answers to the forty prompts of a kind."""

    def sampled(i: int) -> SamplingOptions:
        return SamplingOptions(temperature=temperature, max_tokens=128, seed=i)

    rendered = [
        _tokenizer().apply_chat_template(
            prompt.messages, add_generation_prompt=True, return_dict=False
        )
        for prompt in load_prompts()
        if prompt.kind == kind
    ]
    assert len(rendered) == 40
    return await asyncio.gather(
        *(generate(live, tuple(ids), sampled(i), pinned(name, k)) for i, ids in enumerate(rendered))
    )


def tokens_per_step(results: list[Result]) -> float:
    """Mean tokens per decode step, over all answers."""
    steps = sum(result.spec.decode_steps for result in results)
    return sum(result.spec.decode_tokens for result in results) / steps


@pytest.mark.parametrize(("temperature", "least"), [(0.0, 2.0), (0.7, 1.5)])
async def test_ngram_pays_on_quoting_prompts(live: Live, temperature: float, least: float) -> None:
    assert tokens_per_step(await answers(live, "quote", temperature, "ngram", 5)) >= least


async def test_the_draft_model_pays_more_than_ngram_on_free_prompts(live: Live) -> None:
    draft = tokens_per_step(await answers(live, "free", 0.7, "draft", 4))
    ngram = tokens_per_step(await answers(live, "free", 0.7, "ngram", 5))
    assert draft >= 1.4
    assert draft > ngram


@pytest.mark.parametrize(
    ("head", "least"), [("medusa", 1.45), ("mlp", 1.65), ("eagle", 2.0), ("eagle3", 2.6)]
)
async def test_every_head_pays_on_free_prompts(live: Live, head: str, least: float) -> None:
    assert tokens_per_step(await answers(live, "free", 0.0, head, 4)) >= least


async def test_answers_end_by_themselves(live: Live) -> None:
    results = await answers(live, "quote", 0.7, "ngram", 5)
    assert sum(result.finish_reason == "stop" for result in results) >= 20
