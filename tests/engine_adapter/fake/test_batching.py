"""Many requests at once: queueing, aborts, switches, statistics and metrics."""

import asyncio
from dataclasses import fields
from random import Random

import pytest

from engine_adapter.seam.counts import ProposerCounts
from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.types import NONE, PLAIN, Delta, SpecMethod, Switch
from tests.engine_adapter.fake.conftest import StartEngine
from tests.engine_adapter.fake.harness import FakeHarness, make_request, run, tokens

NGRAM, DRAFT = SpecMethod("ngram", 3), SpecMethod("draft", 4)


def used(delta: Delta) -> set[str]:
    """The proposers that have drafted for a request."""
    assert delta.spec is not None
    return set(delta.spec.by_proposer)


async def test_requests_beyond_the_batch_wait_and_all_are_served(start: StartEngine) -> None:
    harness = await start(max_num_seqs=2, fake_step_ms=2)
    tasks = [
        asyncio.create_task(run(harness, make_request(f"r{i}", max_tokens=10))) for i in range(5)
    ]
    await asyncio.sleep(0.01)
    assert (harness.engine.num_running, harness.engine.num_waiting) == (2, 3)
    assert harness.sample("num_requests_running") == 2
    assert harness.sample("num_requests_waiting") == 3
    assert harness.sample("kv_cache_usage_perc") > 0
    for deltas in await asyncio.gather(*tasks):
        assert len(tokens(deltas)) == 10
    assert harness.sample("num_requests_running") == harness.sample("kv_cache_usage_perc") == 0
    assert harness.sample("request_queue_time_seconds_sum") > 0.02


@pytest.mark.parametrize("waits", [False, True])
async def test_closing_the_generator_aborts_at_once(start: StartEngine, waits: bool) -> None:
    harness = await start(max_num_seqs=1, fake_step_ms=5)
    first = harness.engine.generate(make_request("first"))
    await anext(first)
    second = harness.engine.generate(make_request("second"))
    reading = asyncio.ensure_future(anext(second))
    await asyncio.sleep(0)
    assert (harness.engine.num_running, harness.engine.num_waiting) == (1, 1)
    if waits:
        reading.cancel()
        await asyncio.wait([reading])
        assert (harness.engine.num_running, harness.engine.num_waiting) == (1, 0)
    else:
        await first.aclose()
        assert (harness.engine.num_running, harness.engine.num_waiting) == (0, 1)
        assert (await reading).token_ids
    assert harness.sample("request_success_total", finished_reason="abort") == 1


async def test_a_running_switch_moves_every_request_that_is_not_pinned(start: StartEngine) -> None:
    harness = await start(fake_step_ms=1)
    requests = [
        make_request("free", NGRAM),
        make_request("pinned", NGRAM, pinned=True),
        make_request("plain", PLAIN),
    ]
    live = [harness.engine.generate(r) for r in requests]
    for _ in range(2):
        before = [await anext(it) for it in live]
    assert [used(d) for d in before] == [{"ngram"}, {"ngram"}, set()]
    await harness.engine.switch(Switch(DRAFT, 1), running=True)
    after = [[d async for d in it][-1] for it in live]
    assert [used(d) for d in after] == [{"ngram", "draft"}, {"ngram"}, {"draft"}]


async def test_a_switch_for_new_requests_keeps_the_live_ones(start: StartEngine) -> None:
    harness = await start(fake_step_ms=1)
    live = harness.engine.generate(make_request("free", NGRAM))
    await anext(live)
    await harness.engine.switch(Switch(DRAFT, 1), running=False)
    assert used([d async for d in live][-1]) == {"ngram"}


async def test_a_running_switch_applies_to_requests_of_earlier_epochs(start: StartEngine) -> None:
    harness = await start()
    await harness.engine.switch(Switch(DRAFT, 5), running=True)
    late = await run(harness, make_request("late", NGRAM, epoch=4))
    pinned = await run(harness, make_request("pinned", NGRAM, epoch=4, pinned=True))
    new = await run(harness, make_request("new", NGRAM, epoch=5))
    assert [used(d[-1]) for d in (late, pinned, new)] == [{"draft"}, {"ngram"}, {"ngram"}]


async def test_a_switch_to_an_unknown_proposer_changes_nothing(start: StartEngine) -> None:
    harness = await start()
    with pytest.raises(InvalidRequest):
        await harness.engine.switch(Switch(SpecMethod("unknown", 2), 1), running=True)
    assert used((await run(harness, make_request("r", NGRAM)))[-1]) == {"ngram"}


async def mixed_load(harness: FakeHarness) -> list[list[Delta]]:
    random = Random(0)
    methods = [PLAIN, NGRAM, DRAFT]
    requests = [
        make_request(
            f"r{i}", random.choice(methods), prompt=(i + 1, 7), max_tokens=random.randint(1, 40)
        )
        for i in range(60)
    ]
    return list(await asyncio.gather(*(run(harness, r) for r in requests)))


def _sum(counts: list[ProposerCounts], name: str) -> int:
    return sum(getattr(c, name) for c in counts)


async def test_requests_reports_and_metrics_count_the_same_drafts(start: StartEngine) -> None:
    harness = await start(max_num_seqs=16, fake_length=8, fake_acceptance=0.9)
    results = await mixed_load(harness)
    last = [d[-1].spec for d in results]
    by_request = [c for spec in last if spec for c in spec.by_proposer.values()]
    steps = harness.reports.steps
    by_step = [c for r in steps for name, c in r.verified.items() if name != NONE]
    for field in fields(ProposerCounts):
        if field.name != "accepted_per_position":
            assert _sum(by_request, field.name) == _sum(by_step, field.name) > 0
    assert harness.sample("spec_decode_num_drafts_total") == _sum(by_step, "drafts")
    assert harness.sample("spec_decode_num_draft_tokens_total") == _sum(by_step, "drafted")
    accepted = [
        harness.sample("spec_decode_num_accepted_tokens_per_pos_total", position=str(i))
        for i in range(5)
    ]
    assert accepted == sorted(accepted, reverse=True)
    assert sum(accepted) == harness.sample("spec_decode_num_accepted_tokens_total")
    assert sum(accepted) == _sum(by_step, "accepted")


async def test_every_token_is_reported_once(start: StartEngine) -> None:
    harness = await start(max_num_seqs=16)
    results = await mixed_load(harness)
    generated = sum(len(tokens(deltas)) for deltas in results)
    reported = sum(c.emitted for r in harness.reports.steps for c in r.verified.values())
    assert generated == reported == harness.sample("generation_tokens_total")
    assert harness.sample("prompt_tokens_total") == 120
    assert harness.sample("time_to_first_token_seconds_count") == 60
    assert harness.sample("e2e_request_latency_seconds_count") == 60
    assert harness.sample("request_success_total", finished_reason="length") == 60
    for deltas in results:
        spec = deltas[-1].spec
        assert spec is not None
        assert spec.decode_tokens == len(tokens(deltas)) - len(deltas[0].token_ids)


async def test_acceptance_follows_its_setting(start: StartEngine) -> None:
    harness = await start(fake_acceptance={"ngram": 0.0, "draft": 1.0})
    for i in range(3):
        await run(harness, make_request("a", NGRAM, prompt=(i + 1,), max_tokens=50))
    assert harness.sample("spec_decode_num_accepted_tokens_total") == 0
    deltas = await run(harness, make_request("b", DRAFT, max_tokens=51))
    assert len(deltas) == 1 + 50 // 5
    half = await start(fake_acceptance=0.5)
    for i in range(40):
        await run(half, make_request("c", DRAFT, prompt=(i + 1,), max_tokens=100))
    drafts = half.sample("spec_decode_num_drafts_total")
    first = half.sample("spec_decode_num_accepted_tokens_per_pos_total", position="0")
    assert first / drafts == pytest.approx(0.5, abs=0.05)


async def test_drafts_are_limited_to_the_tokens_that_can_be_accepted(start: StartEngine) -> None:
    harness = await start(fake_acceptance=1.0)
    spec = (await run(harness, make_request("a", DRAFT, max_tokens=4)))[-1].spec
    assert spec is not None
    assert spec.by_proposer == {"draft": ProposerCounts(1, 2, 2, (1, 1), 3)}


async def test_steps_take_the_configured_time(start: StartEngine) -> None:
    harness = await start(fake_step_ms=3, fake_prefill_token_ms=1, fake_draft_token_ms=2)
    await run(harness, make_request("a", DRAFT, max_tokens=30))
    prefill, *others = harness.reports.steps
    assert prefill.kind == "prefill"
    assert prefill.seconds >= 0.053
    verify = [r for r in others if r.kind == "verify"]
    assert verify[0].seconds >= 0.011
    assert verify[0].draft_seconds == {"draft": pytest.approx(0.008)}
    latency = {p.name: p.draft_latency_ms for p in await harness.engine.proposers()}
    assert latency == {"ngram": None, "draft": 2, "prediction": None}
