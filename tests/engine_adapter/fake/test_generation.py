"""The output of one request: text, ends, log probabilities, errors."""

import math
from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoTokenizer

from demo import model_path
from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.types import PLAIN, FinishReason, SpecMethod
from tests.engine_adapter.fake.conftest import StartEngine
from tests.engine_adapter.fake.harness import PROMPT, make_request, run, text, tokens


@pytest.mark.parametrize("method", [SpecMethod("ngram", 3), SpecMethod("draft", 4)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_text_does_not_depend_on_the_proposer(
    start: StartEngine, method: SpecMethod, temperature: float
) -> None:
    harness = await start()
    sampling: dict[str, Any] = {"temperature": temperature, "seed": 3, "max_tokens": 100}
    plain = await run(harness, make_request("a", **sampling))
    drafted = await run(harness, make_request("b", method, **sampling))
    assert tokens(plain) == tokens(drafted)
    assert text(plain) == text(drafted)
    assert len(drafted) < len(plain) == 100


async def test_prompt_seed_and_temperature_change_the_text(start: StartEngine) -> None:
    harness = await start()
    greedy = tokens(await run(harness, make_request(max_tokens=30)))
    assert tokens(await run(harness, make_request(max_tokens=30, seed=9))) == greedy
    assert tokens(await run(harness, make_request(prompt=PROMPT[1:], max_tokens=30))) != greedy
    seeded = [
        tokens(await run(harness, make_request(temperature=1, seed=s, max_tokens=30)))
        for s in (1, 2)
    ]
    assert seeded[0] != seeded[1] != greedy
    unseeded = [
        tokens(await run(harness, make_request(temperature=1, max_tokens=30))) for _ in range(2)
    ]
    assert unseeded[0] != unseeded[1]


async def test_streamed_text_is_the_decoded_tokens(start: StartEngine) -> None:
    harness = await start()
    deltas = await run(harness, make_request(max_tokens=1000, ignore_eos=True))
    tokenizer = AutoTokenizer.from_pretrained(model_path("target"))
    whole = tokenizer.decode(tokens(deltas), skip_special_tokens=True)
    shown = text(deltas)
    assert any(ord(c) > 127 for c in shown)
    assert "�" not in shown
    assert shown == whole


@pytest.mark.parametrize("method", [PLAIN, SpecMethod("draft", 4)])
async def test_an_interval_joins_deltas_between_the_first_and_the_last(
    start: StartEngine, method: SpecMethod
) -> None:
    harness = await start()
    request = make_request(method=method, max_tokens=40, ignore_eos=True, logprobs=2)
    single, joined = [
        await run(harness, replace(request, stream_interval=interval)) for interval in (1, 9)
    ]
    assert (tokens(joined), text(joined)) == (tokens(single), text(single))
    assert sum((delta.logprobs or () for delta in joined), ()) == sum(
        (delta.logprobs or () for delta in single), ()
    )
    assert joined[0].token_ids == single[0].token_ids
    assert all(9 <= len(delta.token_ids) < 14 for delta in joined[1:-1])
    assert (joined[-1].spec, joined[-1].finish_reason) == (single[-1].spec, FinishReason.LENGTH)


async def test_text_ends_by_itself_with_eos(start: StartEngine) -> None:
    harness = await start(fake_length=20)
    deltas = await run(harness, make_request())
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_reason is None
    assert 20 <= len(tokens(deltas)) - 1 < 40
    longer = await run(harness, make_request(ignore_eos=True, max_tokens=60))
    assert len(tokens(longer)) == 60


async def test_generation_stops_where_the_context_ends(start: StartEngine) -> None:
    harness = await start(max_model_len=64)
    for method in (PLAIN, SpecMethod("draft", 4)):
        deltas = await run(harness, make_request(method=method, ignore_eos=True))
        assert deltas[-1].finish_reason is FinishReason.LENGTH
        assert len(tokens(deltas)) == 64 - len(PROMPT)


@pytest.mark.parametrize("method", [PLAIN, SpecMethod("draft", 4)])
async def test_stop_string_is_left_out_and_nothing_follows(
    start: StartEngine, method: SpecMethod
) -> None:
    harness = await start(fake_acceptance=1.0)
    whole = text(await run(harness, make_request(max_tokens=60)))
    stop = whole[40:43]
    end = whole.index(stop)
    deltas = await run(harness, make_request(method=method, max_tokens=60, stop=(stop, "never")))
    assert text(deltas) == whole[:end]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_reason == stop
    kept = await run(
        harness, make_request(max_tokens=60, stop=(stop,), include_stop_str_in_output=True)
    )
    assert text(kept) == whole[: end + len(stop)]
    assert tokens(kept) == tokens(deltas)


async def test_the_beginning_of_a_stop_string_is_withheld(start: StartEngine) -> None:
    harness = await start()
    whole = text(await run(harness, make_request(max_tokens=60)))
    stop = whole[30:50] + "never"
    deltas = await run(harness, make_request(max_tokens=60, stop=(stop,)))
    assert text(deltas) == whole
    seen = ""
    for delta in deltas[:-1]:
        seen += delta.text
        assert not any(seen.endswith(stop[:n]) for n in range(1, len(stop)))


async def test_stop_token_ends_and_is_not_shown(start: StartEngine) -> None:
    harness = await start()
    whole = await run(harness, make_request(max_tokens=30))
    stop = tokens(whole)[12]
    first = tokens(whole).index(stop)
    deltas = await run(harness, make_request(max_tokens=30, stop_token_ids=(stop,)))
    assert tokens(deltas) == tokens(whole)[: first + 1]
    assert deltas[-1].stop_reason == stop
    assert text(deltas) == text(whole[:first])


async def test_min_tokens_delays_stop_tokens_and_stop_strings(start: StartEngine) -> None:
    harness = await start(fake_length=5)
    whole = await run(harness, make_request(ignore_eos=True, max_tokens=4))
    deltas = await run(harness, make_request(min_tokens=30, stop=(text(whole)[2:4],)))
    assert len(tokens(deltas)) >= 30
    assert deltas[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("temperature", "count"), [(0.0, 0), (0.0, 5), (1.0, 1), (1.0, 4)])
async def test_logprobs_are_well_formed(start: StartEngine, temperature: float, count: int) -> None:
    harness = await start()
    request = make_request(
        "a", SpecMethod("draft", 4), temperature=temperature, seed=1, logprobs=count, max_tokens=40
    )
    deltas = await run(harness, request)
    entries = [entry for d in deltas for entry in d.logprobs or ()]
    assert [e.actual.token_id for e in entries] == tokens(deltas)
    for entry in entries:
        values = [a.logprob for a in entry.top]
        assert len(values) == count == len({a.token_id for a in entry.top})
        assert values == sorted(values, reverse=True)
        assert sum(math.exp(v) for v in values) < 1
        if temperature == 0 and count:
            assert entry.top[0] == entry.actual
    if temperature:
        assert any(e.actual not in e.top[:1] for e in entries)


async def test_prompt_logprobs_come_first_and_once(start: StartEngine) -> None:
    harness = await start()
    first, *rest = await run(harness, make_request(prompt_logprobs=2, max_tokens=5))
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    chosen = [e.actual.token_id for e in first.prompt_logprobs[1:] if e]
    assert chosen == list(PROMPT[1:])
    assert all(d.prompt_logprobs is None for d in rest)


async def test_a_repeated_prompt_is_found_in_the_prefix_cache(start: StartEngine) -> None:
    harness = await start(block_size=16)
    cached = [
        (await run(harness, make_request(max_tokens=1)))[0].num_cached_tokens for _ in range(2)
    ]
    assert cached == [0, 48]


@pytest.mark.parametrize(
    ("param", "request_"),
    [
        ("prompt", make_request(prompt=())),
        ("prompt", make_request(prompt=(1,) * 2048)),
        ("prompt", make_request(prompt=(10**6,))),
        ("max_tokens", make_request(max_tokens=0)),
        ("min_tokens", make_request(max_tokens=2, min_tokens=3)),
        ("logprobs", make_request(logprobs=21)),
        ("prompt_logprobs", make_request(prompt_logprobs=21)),
        ("stop_token_ids", make_request(stop_token_ids=(-1,))),
        ("spec_decode.proposer", make_request(method=SpecMethod("unknown", 1))),
        ("spec_decode.num_speculative_tokens", make_request(method=SpecMethod("ngram", 4))),
    ],
)
async def test_an_unsupported_value_is_refused_with_its_field(
    start: StartEngine, param: str, request_: Any
) -> None:
    harness = await start()
    with pytest.raises(InvalidRequest) as caught:
        await run(harness, request_)
    assert caught.value.param == param
    assert harness.engine.num_running == harness.engine.num_waiting == 0


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("How is the weather today?", "sun"),
        ("weather", "sun"),
        ("tools: get_weather, weathered", "plain"),
        ("x<tool_response>y", "rain"),
    ],
)
async def test_a_scripted_answer_needs_its_part_as_whole_words(
    start: StartEngine, prompt: str, answer: str
) -> None:
    answers = {"weather": "sun", "<tool_response>": "rain", "tools:": "plain"}
    harness = await start(fake_answers=answers)
    assert harness.engine._vocabulary is not None
    ids = tuple(harness.engine._vocabulary.tokenizer.encode(prompt).ids)
    deltas = await run(harness, make_request(prompt=ids, max_tokens=50))
    assert "".join(delta.text for delta in deltas).strip() == answer
