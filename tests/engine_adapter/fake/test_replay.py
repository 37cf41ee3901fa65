"""`fake_replay`: the same deltas for every request, in step, and the same failures as ever."""

import asyncio
import time
from typing import Any

import pytest

from engine_adapter.fake.replay import ReplayEngine, StepClock
from engine_adapter.seam.errors import EngineConfigError, EngineDead, InvalidRequest
from engine_adapter.seam.types import (
    ConstraintKind,
    FinishReason,
    SpecMethod,
    StructuredOutput,
)
from tests.engine_adapter.fake.conftest import StartEngine
from tests.engine_adapter.fake.harness import PROMPT, build, make_request, run, tokens


async def test_every_request_gets_the_same_deltas(start: StartEngine) -> None:
    harness = await start(fake_replay=True)
    assert isinstance(harness.engine, ReplayEngine)
    first = await run(harness, make_request("a", max_tokens=9))
    second = await run(harness, make_request("b", prompt=PROMPT[1:], max_tokens=9, temperature=1.0))
    assert first == second
    assert [len(delta.token_ids) for delta in first] == [1] * 9
    assert all(delta.text for delta in first), "no event is left out"
    assert [delta.finish_reason for delta in first] == [None] * 8 + [FinishReason.LENGTH]
    assert harness.reports.steps == []


async def test_with_a_proposer_every_draft_is_accepted(start: StartEngine) -> None:
    harness = await start(fake_replay=True)
    deltas = await run(harness, make_request(method=SpecMethod("ngram", 2), max_tokens=9))
    assert [len(delta.token_ids) for delta in deltas] == [1, 3, 3, 2]
    plain = await run(harness, make_request(max_tokens=9))
    assert tokens(deltas) == tokens(plain)
    spec = deltas[-1].spec
    assert spec is not None
    counts = spec.by_proposer["ngram"]
    assert (spec.decode_steps, spec.decode_tokens) == (3, 8)
    assert (counts.drafts, counts.drafted, counts.accepted, counts.emitted) == (3, 6, 6, 8)


async def test_a_policy_drafts_nothing(start: StartEngine) -> None:
    harness = await start(fake_replay=True)
    deltas = await run(harness, make_request(method=SpecMethod("auto", 3), max_tokens=4))
    assert [len(delta.token_ids) for delta in deltas] == [1] * 4
    assert deltas[-1].spec is not None
    assert not deltas[-1].spec.by_proposer


async def test_a_text_ends_with_the_context(start: StartEngine) -> None:
    harness = await start(fake_replay=True, max_model_len=len(PROMPT) + 5)
    assert len(tokens(await run(harness, make_request()))) == 5


@pytest.mark.parametrize(
    ("param", "sampling"),
    [
        ("logprobs", {"logprobs": 0}),
        ("prompt_logprobs", {"prompt_logprobs": 1}),
        ("stop", {"stop": ("x",)}),
        ("stop_token_ids", {"stop_token_ids": (5,)}),
        (
            "response_format",
            {
                "structured_output": StructuredOutput(
                    ConstraintKind.JSON_SCHEMA, "{}", param="response_format"
                )
            },
        ),
    ],
)
async def test_what_would_need_its_own_text_is_refused(
    start: StartEngine, param: str, sampling: dict[str, Any]
) -> None:
    harness = await start(fake_replay=True)
    with pytest.raises(InvalidRequest, match="fake_replay does not support") as caught:
        await run(harness, make_request(**sampling))
    assert caught.value.param == param
    assert harness.engine.num_running == 0


async def test_an_id_that_is_in_use_is_refused(start: StartEngine) -> None:
    harness = await start(fake_replay=True, fake_step_ms=5)
    stream = harness.engine.generate(make_request("a", max_tokens=5))
    await anext(stream)
    assert harness.engine.num_running == 1
    with pytest.raises(InvalidRequest, match="in use"):
        await run(harness, make_request("a"))
    await stream.aclose()
    assert harness.engine.num_running == 0


@pytest.mark.parametrize("step_ms", [0, 20])
async def test_a_death_ends_every_stream(start: StartEngine, step_ms: float) -> None:
    harness = await start(fake_replay=True, fake_step_ms=step_ms)
    streams = [harness.engine.generate(make_request(name)) for name in "ab"]
    for stream in streams:
        await anext(stream)
    harness.engine.die("killed")
    for stream in streams:
        with pytest.raises(EngineDead, match="killed"):
            await anext(stream)
    with pytest.raises(EngineDead):
        await run(harness, make_request("c"))
    harness.engine.revive()
    assert len(await run(harness, make_request("c", max_tokens=2))) == 2


async def test_streams_step_together() -> None:
    clock = StepClock(0.05)
    first = clock.next_step()
    times: list[float] = []

    async def wait() -> None:
        await clock.reach(first)
        times.append(time.monotonic())

    await asyncio.gather(*(wait() for _ in range(20)))
    assert min(times) >= first * 0.05
    woken_after_a_cancelled_one = asyncio.create_task(wait())
    cancelled = asyncio.create_task(clock.reach(first + 1))
    await asyncio.sleep(0)
    cancelled.cancel()
    await woken_after_a_cancelled_one
    await clock.reach(first + 2)
    assert time.monotonic() >= (first + 2) * 0.05


def test_it_is_on_or_off() -> None:
    with pytest.raises(EngineConfigError, match="fake_replay: must be true or false, got 1"):
        build(fake_replay=1)
