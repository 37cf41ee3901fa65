"""Sampled output is the target's under every proposer: token for token under a seed."""

import asyncio
from typing import Any

import pytest
from transformers import AutoTokenizer

from engine_adapter.seam.types import (
    FinishReason,
    GenerationRequest,
    RepetitionDetection,
    SamplingOptions,
)
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.conftest import TARGET, THINKING
from tests.engine_adapter.vllm_engine.support.live import Live, Prompt, generate, greedy, pinned

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

DRAFTING = {"ngram": 5, "suffix": 8, "draft": 4, "self": 5}
OPTIONS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1.3},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "top_k": {"temperature": 1.0, "top_k": 20},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.4},
    "min_tokens": {"temperature": 1.0, "min_tokens": 20, "ignore_eos": False},
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "logit_bias": {"temperature": 0.9, "logit_bias": dict.fromkeys(range(200, 400), -3.0)},
    "bad_words": {"temperature": 0.9, "bad_words": ("return", " self", "(")},
    "allowed_token_ids": {"temperature": 0.9, "allowed_token_ids": tuple(range(100, 700))},
    "thinking_token_budget": {"temperature": 0.9, "thinking_token_budget": 9},
    "everything": {
        "temperature": 0.9,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "logit_bias": {300: 2.0, 301: -5.0},
        "bad_words": (" =",),
        "presence_penalty": 0.3,
    },
}
FEW = ("penalties", "min_tokens", "allowed_token_ids", "thinking_token_budget", "everything")
"""Those of `make test`; most others are parts of `everything`."""


@pytest.mark.parametrize("name", proved_beyond(FEW, OPTIONS))
async def test_a_seeded_text_is_that_of_plain_decoding(
    live: Live, prompts: list[Prompt], name: str
) -> None:
    await check_seeded(live, prompts, OPTIONS[name])


async def check_seeded(live: Live, prompts: list[Prompt], options: dict[str, Any]) -> None:
    """Asserts that seeded texts do not depend on the proposer."""

    def sampled(seed: int) -> SamplingOptions:
        return SamplingOptions(**({"max_tokens": 40, "ignore_eos": True, "seed": seed} | options))

    *mixed, _ = await asyncio.gather(
        *(
            generate(live, p, sampled(i), pinned(name, DRAFTING.get(name, 0)))
            for name in ("none", *DRAFTING)
            for i, p in enumerate(prompts[:6])
        ),
        generate(live, prompts[6], greedy(40), pinned("self", 5)),
    )
    plain = mixed[:6]
    for i, result in enumerate(mixed):
        assert result.tokens == plain[i % 6].tokens
    assert sum(result.counts("self").accepted for result in mixed[-6:]) > 0
    assert len({result.tokens for result in plain}) == len(plain)


@pytest.mark.parametrize("name", ["none", "ngram", "self"])
async def test_an_interval_joins_deltas_and_changes_no_text(
    live: Live, prompts: list[Prompt], name: str
) -> None:
    def request(interval: int) -> GenerationRequest:
        return GenerationRequest(
            f"interval-{interval}",
            prompts[0],
            SamplingOptions(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=2),
            pinned(name, DRAFTING.get(name, 0)),
            stream_interval=interval,
        )

    single, joined = [
        [delta async for delta in live.engine.generate(request(interval))] for interval in (1, 9)
    ]
    for field in ("text", "token_ids", "logprobs"):
        of_single, of_joined = (
            [part for delta in deltas for part in getattr(delta, field)]
            for deltas in (single, joined)
        )
        assert of_single == of_joined
    assert joined[0].token_ids == single[0].token_ids
    assert min(len(delta.token_ids) for delta in joined[1:-1]) >= 9
    assert joined[-1].spec == single[-1].spec


async def of_all(
    live: Live, prompts: list[Prompt], **options: Any
) -> dict[tuple[str, int], tuple[int, ...]]:
    """The tokens under every proposer and none for three prompts, in one batch: 24 each."""
    sampling = SamplingOptions(**({"max_tokens": 24, "ignore_eos": True} | options))
    keys = [(name, i) for name in ("none", *DRAFTING) for i in range(3)]
    results = await asyncio.gather(
        *(
            generate(live, prompts[i], sampling, pinned(name, DRAFTING.get(name, 0)))
            for name, i in keys
        )
    )
    return {key: result.tokens for key, result in zip(keys, results, strict=True)}


async def test_min_p_of_one_leaves_the_likeliest_token(live: Live, prompts: list[Prompt]) -> None:
    greedily, likeliest, any_token = await asyncio.gather(
        of_all(live, prompts, temperature=0.0),
        of_all(live, prompts, temperature=1.0, min_p=1.0),
        of_all(live, prompts, temperature=1.0, min_p=0.0),
    )
    assert likeliest == greedily != any_token


async def test_logit_bias_bans_and_forces_tokens(live: Live, prompts: list[Prompt]) -> None:
    free = await of_all(live, prompts, temperature=0.0)
    common = {token for tokens in free.values() for token in tokens[::3]}
    banned, forced = await asyncio.gather(
        of_all(live, prompts, temperature=0.0, logit_bias=dict.fromkeys(common, -100.0)),
        of_all(live, prompts, temperature=1.0, logit_bias={77: 100.0}),
    )
    assert not common & {token for tokens in banned.values() for token in tokens}
    for (_, prompt), tokens in banned.items():
        assert tokens == banned["none", prompt]
    assert set(forced.values()) == {(77,) * 24}


async def test_bad_words_and_disallowed_tokens_are_never_emitted(
    live: Live, prompts: list[Prompt]
) -> None:
    free = await of_all(live, prompts, temperature=0.0)
    allowed = tuple(sorted({token for tokens in free.values() for token in tokens}))[::2]
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    words = ("return", "def")
    forms = [prefix + word for word in words for prefix in ("", " ")]
    (ids,) = zip(*(tokenizer.encode(form, add_special_tokens=False) for form in forms), strict=True)
    texts = await asyncio.gather(
        of_all(live, prompts, temperature=1.2, allowed_token_ids=allowed),
        of_all(live, prompts, temperature=1.0),
        of_all(live, prompts, temperature=1.0, bad_words=words),
    )
    restricted, unlimited, without = (
        {token for tokens in of_one.values() for token in tokens} for of_one in texts
    )
    assert restricted <= set(allowed)
    assert unlimited.intersection(ids)
    assert not without.intersection(ids)


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


async def test_texts_without_a_seed_differ(live: Live, prompts: list[Prompt]) -> None:
    hot = SamplingOptions(temperature=2.0, max_tokens=40, ignore_eos=True)
    results = await asyncio.gather(
        *(generate(live, prompts[8], hot, pinned("self", 5)) for _ in range(4))
    )
    assert len({result.tokens for result in results}) == 4


async def test_logprobs_are_the_same_under_every_proposer(
    live: Live, prompts: list[Prompt]
) -> None:
    async def logprobs(name: str, k: int) -> list[tuple[int, float, int]]:
        from engine_adapter.seam.types import GenerationRequest

        request = GenerationRequest(
            f"logprobs-{name}", prompts[0], greedy(24, logprobs=3), pinned(name, k)
        )
        entries = [
            entry async for delta in live.engine.generate(request) for entry in delta.logprobs or ()
        ]
        return [(e.actual.token_id, e.actual.logprob, len(e.top)) for e in entries]

    plain = await logprobs("none", 0)
    assert len(plain) == 24
    assert {count for *_, count in plain} == {3}
    for name, k in DRAFTING.items():
        drafted = await logprobs(name, k)
        assert [(t, c) for t, _, c in drafted] == [(t, c) for t, _, c in plain]
        assert [p for _, p, _ in drafted] == pytest.approx([p for _, p, _ in plain], abs=1e-4)


async def test_a_text_that_repeats_itself_ends_at_the_same_token_with_every_proposer(
    live: Live, prompts: list[Prompt]
) -> None:
    limits: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True, "temperature": 0.0}
    forced = SamplingOptions(
        **limits,
        logit_bias={77: 100.0},
        min_tokens=10,
        repetition_detection=RepetitionDetection(max_pattern_size=3, min_count=4),
    )
    free = SamplingOptions(
        **limits, repetition_detection=RepetitionDetection(max_pattern_size=16, min_count=2)
    )
    methods = [pinned("none", 0), *(pinned(name, k) for name, k in DRAFTING.items())]
    for sampling in (forced, free):
        results = await asyncio.gather(
            *(generate(live, prompts[0], sampling, method) for method in methods)
        )
        (tokens,) = {result.tokens for result in results}
        assert {result.finish_reason for result in results} == {FinishReason.REPETITION}
        assert sampling is free or tokens == (77,) * 10


@pytest.mark.parametrize("temperature", proved_beyond([1.0], [0.0, 1.0]))
async def test_reasoning_ends_after_its_budget_and_the_text_goes_on(
    live: Live, prompts: list[Prompt], temperature: float
) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(TARGET)
    mark = tokenizer.convert_tokens_to_ids(THINKING["reasoning_end_str"])
    assert live.engine.info.has_thinking_budget
    budgets = (0, 1, 7)  # the end is forced on the first token, and among the drafts
    *limited, without, ample = await asyncio.gather(
        *(
            of_all(live, prompts, temperature=temperature, thinking_token_budget=budget)
            for budget in budgets
        ),
        of_all(live, prompts, temperature=0.0),
        of_all(live, prompts, temperature=0.0, thinking_token_budget=24),
    )
    for budget, texts in zip(budgets, limited, strict=True):
        for tokens in texts.values():
            assert (tokens.index(mark), len(tokens)) == (budget, 24)
        if temperature == 0:
            assert len(set(texts.values())) == 3
    assert ample == without


async def test_a_preempted_request_does_not_count_its_reasoning_again(
    cramped: Live, live: Live, prompts: list[Prompt]
) -> None:
    sampling = greedy(60, thinking_token_budget=45)
    before = cramped.metric("vllm:num_preemptions_total")
    plans = [(p, pinned(name, DRAFTING[name])) for name in ("ngram", "draft") for p in prompts[:12]]
    results = await asyncio.gather(*(generate(cramped, p, sampling, plan) for p, plan in plans))
    assert cramped.metric("vllm:num_preemptions_total") > before
    roomy = await asyncio.gather(*(generate(live, p, sampling) for p in prompts[:12]))
    assert [result.tokens for result in results] == [result.tokens for result in roomy] * 2
