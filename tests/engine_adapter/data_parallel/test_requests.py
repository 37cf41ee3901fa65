"""Sequences at several engines: where they run, and what the death of one engine does."""

import asyncio

import pytest

from engine_adapter.seam.errors import EngineDead, EngineNotReady, EngineStartError
from engine_adapter.seam.types import ConstraintKind, SpecMethod, StructuredOutput
from tests.engine_adapter.data_parallel.conftest import StartFleet
from tests.engine_adapter.data_parallel.fleet import ENDLESS, SLOW, build
from tests.engine_adapter.fake.harness import make_request, text
from tests.server.gateway import eventually


def prompt(i: int) -> tuple[int, ...]:
    return tuple(range(10 + i, 60 + i))


async def test_texts_are_those_of_one_engine(start: StartFleet) -> None:
    one, two = await start(1), await start(2)
    for i in range(6):
        request = make_request(f"r{i}", SpecMethod("ngram", 3), prompt=prompt(i), max_tokens=40)
        assert text(await two.run(request)) == text(await one.run(request))


async def test_sequences_are_spread_over_the_engines(start: StartFleet) -> None:
    fleet = await start(**SLOW)
    tasks = [
        fleet.begin(make_request(f"r{i}", prompt=prompt(i), max_tokens=ENDLESS)) for i in range(6)
    ]
    await eventually(lambda: sum(fleet.running) == 6)
    assert fleet.running == [3, 3]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert fleet.running == [0, 0], "a closed generator aborts its sequence"


async def test_choices_of_a_prompt_share_an_engine(start: StartFleet) -> None:
    fleet = await start(**SLOW)
    shared = prompt(0)
    tasks = [
        fleet.begin(make_request(f"r-{i}", prompt=shared, max_tokens=ENDLESS)) for i in range(4)
    ]
    await eventually(lambda: sum(fleet.running) == 4)
    assert sorted(fleet.running) == [0, 4]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_only_the_requests_of_a_dead_engine_fail(start: StartFleet) -> None:
    fleet, one = await start(fake_step_ms=5), await start(1)
    requests = [make_request(f"r{i}", prompt=prompt(i), max_tokens=60) for i in range(6)]
    tasks = [fleet.begin(request) for request in requests]
    await eventually(lambda: fleet.running == [3, 3])
    lost = {sequence.request.request_id for sequence in fleet.sequences(1)}
    fleet.ranks[1].die("killed", 5.0)
    assert fleet.engine.failure is None
    assert [failure is None for failure in fleet.engine.failures] == [True, False]
    for request, task in zip(requests, tasks, strict=True):
        if request.request_id in lost:
            with pytest.raises(EngineDead, match="Engine 1 of 2: The engine died: killed") as dead:
                await task
            assert dead.value.retry_after_s == 0, "the other engine serves the next attempt"
        else:
            assert text(await task) == text(await one.run(request))
    for i in range(4):
        assert await fleet.run(make_request(f"later{i}", prompt=prompt(i), max_tokens=3))


async def test_an_engine_that_is_back_serves_again(start: StartFleet) -> None:
    fleet = await start(fake_restart_s=0.02, **SLOW)
    fleet.ranks[0].die()
    await eventually(lambda: fleet.reports.restarts == [True])
    assert fleet.engine.failures == (None, None)
    tasks = [
        fleet.begin(make_request(f"r{i}", prompt=prompt(i), max_tokens=ENDLESS)) for i in range(2)
    ]
    await eventually(lambda: fleet.running == [1, 1])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_engine_is_dead_when_all_are(start: StartFleet) -> None:
    fleet = await start()
    fleet.ranks[0].die("first", None)
    fleet.ranks[1].die("second", 7.0)
    failure = fleet.engine.failure
    assert failure is not None
    assert "None of the 2 engines serves. Engine 1: The engine died: second." in str(failure)
    assert failure.retry_after_s == 7.0, "that of the engine that is back first"
    with pytest.raises(EngineDead, match="None of the 2 engines"):
        await fleet.run(make_request())
    with pytest.raises(EngineDead, match="None of the 2 engines"):
        await fleet.engine.check_constraint(StructuredOutput(ConstraintKind.JSON_OBJECT))
    fleet.ranks[1].die("again", None)
    assert [info.name for info in fleet.engine.info.proposers] == ["ngram", "suffix", "prediction"]


async def test_engines_without_a_replacement_are_dead_for_good(start: StartFleet) -> None:
    fleet = await start()
    for rank in fleet.ranks:
        rank.die()
    assert fleet.engine.failure is not None
    assert fleet.engine.failure.retry_after_s is None


async def test_a_stop_ends_every_sequence(start: StartFleet) -> None:
    fleet = await start(**SLOW)
    tasks = [
        fleet.begin(make_request(f"r{i}", prompt=prompt(i), max_tokens=ENDLESS)) for i in range(4)
    ]
    await eventually(lambda: sum(fleet.running) == 4)
    await fleet.engine.stop()
    for task in tasks:
        with pytest.raises(EngineDead, match=r"^The engine was stopped\.$"):
            await task
    await fleet.engine.stop()


async def test_nothing_is_served_before_the_start() -> None:
    fleet = build()
    with pytest.raises(EngineNotReady):
        _ = fleet.engine.info
    with pytest.raises(EngineNotReady):
        await fleet.run(make_request())
    await fleet.engine.stop()


async def test_progress_names_the_engine() -> None:
    fleet, lines = build(), list[str]()
    await fleet.engine.start(lines.append)
    assert [line for line in lines if "Starting" in line] == [
        "engine 0: Starting the fake engine",
        "engine 1: Starting the fake engine",
    ]
    await fleet.engine.stop()


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_a_start_that_fails_leaves_no_engine(index: int) -> None:
    fleet = build(3, own={index: {"fake_fail_start": "no memory"}})
    with pytest.raises(EngineStartError, match="no memory"):
        await fleet.engine.start(lambda line: None)
    assert [task for task in asyncio.all_tasks() if task.get_name() == "fake-engine"] == []
    assert all(rank._lifetime.stopped for rank in fleet.ranks)
