"""Switches reach the right requests immediately, and no draft is made from stale KV."""

import asyncio

import pytest

from engine_adapter.seam.types import SpecDecodeParams, SpecMethod
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.conftest import CHOICES
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Result,
    Stock,
    generate,
    greedy,
    pinned,
    repeat_until_it_happens,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


def follower(live: Live, prompt: Prompt, length: int, method: SpecMethod) -> asyncio.Task[Result]:
    """Starts a request that is not pinned, admitted under `method`."""
    spec = SpecDecodeParams(method, switch_epoch=live.epoch)
    return asyncio.create_task(generate(live, prompt, greedy(length), spec))


@pytest.mark.parametrize("before", proved_beyond(["none"], ["none", "ngram", "suffix", "draft"]))
async def test_after_a_switch_every_draft_of_the_target_itself_is_accepted(
    live: Live, stock: Stock, prompts: list[Prompt], before: str
) -> None:
    async def switched(_: int) -> bool:
        method = await live.switch(before, CHOICES[before])
        tasks = [follower(live, prompt, 200, method) for prompt in prompts[8:12]]
        await live.recorder.more(12)
        await live.switch("self", 5)
        drafted = []
        for prompt, task in zip(prompts[8:12], tasks, strict=True):
            result = await task
            await stock.check(prompt, result.tokens)
            counts = result.counts("self")
            assert counts.accepted == counts.drafted
            drafted.append(counts.drafted)
        return all(drafted)

    await repeat_until_it_happens(switched)


async def test_lag_is_removed_once(live: Live, prompts: list[Prompt]) -> None:
    async def switched(attempt: int) -> bool:
        # No other test uses it: none of it is in the prefix cache.
        prompt = prompts[2][attempt:][::-1]
        method = await live.switch("none")
        task = follower(live, prompt, 120, method)
        await live.recorder.more(20)
        since = len(live.recorder.steps)
        await live.switch("self", 5)
        result = await task
        caught = [s.catchup_tokens["self"] for s in live.recorder.steps[since:] if s.catchup_tokens]
        if not result.counts("self").drafted:
            return False
        assert len(caught) == 1
        assert len(prompt) < caught[0] < len(prompt) + 120
        return True

    await repeat_until_it_happens(switched)


async def test_new_requests_does_not_change_running_rows_and_immediate_does(
    live: Live, prompts: list[Prompt]
) -> None:
    async def switched(_: int) -> bool:
        method = await live.switch("suffix", 8)
        old = follower(live, prompts[9], 240, method)
        await live.recorder.more(5)
        method = await live.switch("self", 5, running=False)
        new = follower(live, prompts[10], 40, method)
        assert set((await new).spec.by_proposer) == {"self"}
        await live.switch("draft", 4)
        assert set((await old).spec.by_proposer) <= {"suffix", "draft"}
        return old.result().counts("draft").drafted > 0

    await repeat_until_it_happens(switched)


async def test_a_pinned_request_is_not_switched(live: Live, prompts: list[Prompt]) -> None:
    task = asyncio.create_task(generate(live, prompts[9], greedy(120), pinned("draft", 4)))
    await live.recorder.more(5)
    await live.switch("self", 5)
    assert set((await task).spec.by_proposer) == {"draft"}


async def test_a_request_overtaken_by_an_immediate_switch_follows_it(
    live: Live, prompts: list[Prompt]
) -> None:
    stale = SpecDecodeParams(SpecMethod("draft", 4), switch_epoch=live.epoch)
    await live.switch("self", 3)
    result = await generate(live, prompts[3], greedy(30), stale)
    assert set(result.spec.by_proposer) == {"self"}


@pytest.mark.parametrize("running", [True, False], ids=["immediate", "new_requests"])
async def test_fifty_switches_under_sixteen_streams_change_no_output(
    live: Live, stock: Stock, prompts: list[Prompt], running: bool
) -> None:
    method = await live.switch("none")
    done: list[tuple[Prompt, Result]] = []
    stop = asyncio.Event()

    async def stream(i: int) -> None:
        while not stop.is_set():
            prompt = prompts[i % len(prompts)]
            done.append((prompt, await follower(live, prompt, 48, method)))

    streams = [asyncio.create_task(stream(i)) for i in range(16)]
    choices = list(CHOICES.items())
    for i in range(50):
        method = await live.switch(*choices[(i * 3 + i // 5) % len(choices)], running=running)
        await asyncio.sleep(0.03)
    stop.set()
    await asyncio.gather(*streams)
    assert len(done) >= 16
    for prompt, result in done:
        assert len(result.tokens) == 48
        await stock.check(prompt, result.tokens)
        counts = result.counts("self")
        assert counts.accepted == counts.drafted
