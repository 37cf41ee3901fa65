"""The counts of requests and of steps, compared with vLLM's own counters."""

import asyncio

import pytest

from engine_adapter.seam.counts import ProposerCounts
from engine_adapter.seam.types import GenerationRequest
from tests.engine_adapter.vllm_engine.conftest import CHOICES
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    add_counts,
    generate,
    greedy,
    pinned,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


def of_vllm(live: Live) -> ProposerCounts:
    """vLLM's own speculation counters."""
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    positions = [int(live.metric(name, position=str(i))) for i in range(8)]
    while positions and not positions[-1]:
        positions.pop()
    return ProposerCounts(
        drafts=int(live.metric("vllm:spec_decode_num_drafts_total")),
        drafted=int(live.metric("vllm:spec_decode_num_draft_tokens_total")),
        accepted=int(live.metric("vllm:spec_decode_num_accepted_tokens_total")),
        accepted_per_position=tuple(positions),
    )


async def test_the_sum_over_proposers_is_vllms_count_with_aborts(
    live: Live, prompts: list[Prompt]
) -> None:
    async def abandoned(i: int) -> None:
        name, k = list(CHOICES.items())[i % len(CHOICES)]
        request = GenerationRequest(f"abandoned-{i}", prompts[i], greedy(200), pinned(name, k))
        stream = live.engine.generate(request)
        async for _ in stream:
            break
        await stream.aclose()

    finished = [
        generate(live, p, greedy(50), pinned(name, k))
        for p in prompts[:2]
        for name, k in CHOICES.items()
    ]
    await asyncio.gather(*finished, *(abandoned(i) for i in range(10)))
    totals = live.recorder.totals()
    drafted = {name: counts for name, counts in totals.items() if name != "none"}
    (whole,) = add_counts({"all": counts} for counts in drafted.values()).values()
    want = of_vllm(live)
    assert whole.drafts == want.drafts > 0
    assert whole.drafted == want.drafted
    assert whole.accepted == want.accepted
    assert whole.accepted_per_position == want.accepted_per_position


async def test_emitted_tokens_of_all_proposers_are_the_generated_tokens(
    live: Live, prompts: list[Prompt]
) -> None:
    since = len(live.recorder.steps)
    before = live.metric("vllm:generation_tokens_total")
    await asyncio.gather(
        *(generate(live, prompts[0], greedy(33), pinned(n, k)) for n, k in CHOICES.items())
    )
    emitted = sum(counts.emitted for counts in live.recorder.totals(since).values())
    assert emitted == len(CHOICES) * 33 == live.metric("vllm:generation_tokens_total") - before


async def test_plain_decoding_drafts_and_verifies_nothing(
    live: Live, prompts: list[Prompt]
) -> None:
    since = len(live.recorder.steps)
    before = of_vllm(live)
    result = await generate(live, prompts[4], greedy(20), pinned("none", 0))
    assert of_vllm(live) == before
    assert result.spec.by_proposer == {}
    assert result.spec.decode_steps == result.spec.decode_tokens == 19
    steps = live.recorder.steps[since:]
    assert {s.kind for s in steps} == {"prefill", "decode"}
    assert not any(s.draft_seconds for s in steps)


async def test_a_request_that_ends_with_a_stop_string_has_statistics(
    live: Live, prompts: list[Prompt]
) -> None:
    plain = await generate(live, prompts[0], greedy(60), pinned("self", 5))
    stop = plain.text[40:43]
    result = await generate(live, prompts[0], greedy(60, stop=(stop,)), pinned("self", 5))
    assert result.finish_reason == "stop"
    assert stop not in result.text
    assert result.counts("self").accepted == result.counts("self").drafted > 0


async def test_drafting_is_timed_per_proposer_and_shown(live: Live, prompts: list[Prompt]) -> None:
    since = len(live.recorder.steps)
    await asyncio.gather(
        *(generate(live, prompts[0], greedy(33), pinned(n, k)) for n, k in CHOICES.items())
    )
    timed = {name for step in live.recorder.steps[since:] for name in step.draft_seconds}
    assert timed == set(CHOICES) - {"none"}
    shown = {info.name: info for info in await live.engine.proposers()}
    assert all((shown[name].draft_latency_ms or 0) > 0 for name in timed)
    assert shown["self"].kv_bytes > shown["draft"].kv_bytes > 0 == shown["ngram"].kv_bytes
    assert shown["self"].weights_bytes > shown["draft"].weights_bytes > 0
    assert all(shown[name].weights_bytes > 0 == shown[name].kv_bytes for name in ("medusa", "mlp"))
