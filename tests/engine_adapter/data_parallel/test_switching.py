"""A switch reaches all engines or none; an engine that was dead gets it when it is back."""

import pytest
from structlog.testing import capture_logs

from engine_adapter.seam.errors import EngineDead, EngineError
from engine_adapter.seam.types import SpecMethod, Switch
from tests.engine_adapter.data_parallel.conftest import StartFleet
from tests.engine_adapter.data_parallel.fleet import (
    ENDLESS,
    NGRAM,
    SLOW,
    SUFFIX,
    back,
    end,
    fails_once,
    kills,
    methods,
    running,
)
from tests.engine_adapter.fake.harness import make_request
from tests.server.gateway import eventually


async def test_a_switch_moves_the_requests_of_all_engines(start: StartFleet) -> None:
    fleet = await start(**SLOW)
    tasks = await running(fleet, NGRAM)
    await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    assert methods(fleet, 0) == methods(fleet, 1) == {SUFFIX}
    await end(tasks)


async def test_a_switch_for_new_requests_moves_none(start: StartFleet) -> None:
    fleet = await start(**SLOW)
    tasks = await running(fleet, NGRAM)
    await fleet.engine.switch(Switch(SUFFIX, 1), running=False)
    assert methods(fleet, 0) == methods(fleet, 1) == {NGRAM}
    await end(tasks)


async def test_a_switch_that_one_engine_refuses_is_taken_back(start: StartFleet) -> None:
    fleet = await start(**SLOW)
    tasks = await running(fleet, NGRAM)
    fails_once(fleet.ranks[1], "switch", EngineError("broken"))
    with pytest.raises(EngineError, match="broken"):
        await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    assert methods(fleet, 0) == methods(fleet, 1) == {NGRAM}
    await end(tasks)
    # Requests that begin now carry the number of the failed switch, as the gateway says.
    late = fleet.begin(make_request("late", NGRAM, epoch=1, max_tokens=ENDLESS))
    await eventually(lambda: sum(fleet.running) == 1)
    assert methods(fleet, 0) | methods(fleet, 1) == {NGRAM}
    await end([late])


async def test_a_second_refused_switch_returns_to_the_first(start: StartFleet) -> None:
    fleet = await start(**SLOW)
    tasks = await running(fleet, NGRAM)
    await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    fails_once(fleet.ranks[0], "switch", EngineError("broken"))
    with pytest.raises(EngineError, match="broken"):
        await fleet.engine.switch(Switch(SpecMethod("ngram", 1), 2), running=True)
    assert methods(fleet, 0) == methods(fleet, 1) == {SUFFIX}
    await end(tasks)


async def test_an_engine_that_cannot_take_a_switch_back_serves_when_it_has(
    start: StartFleet,
) -> None:
    fleet = await start(**SLOW)
    tasks = await running(fleet, NGRAM)
    refuses, original = fleet.ranks[0], fleet.ranks[0].switch
    calls: list[Switch] = []

    async def switch(switch: Switch, *, running: bool) -> None:
        calls.append(switch)
        if len(calls) == 2:  # the first undoing
            assert fleet.engine.failures == (None, None)
            raise EngineError("not now")
        await original(switch, running=running)

    setattr(refuses, "switch", switch)  # noqa: B010
    fails_once(fleet.ranks[1], "switch", EngineError("broken"))
    with (
        capture_logs() as logs,
        pytest.raises(EngineError, match="broken"),
    ):
        await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    assert [line["event"] for line in logs] == ["engine_change_not_undone"]
    behind = fleet.engine.failures[0]
    assert behind is not None
    assert "takes a change that it missed" in str(behind)
    await eventually(lambda: fleet.engine.failures[0] is None)
    assert methods(fleet, 0) == methods(fleet, 1) == {NGRAM}
    await end(tasks)


async def test_an_engine_that_is_back_has_the_fleets_switch(start: StartFleet) -> None:
    fleet = await start(**SLOW)
    kills(fleet, 1)
    await fleet.engine.switch(Switch(NGRAM, 1), running=True)
    await fleet.engine.switch(Switch(SUFFIX, 2), running=True)
    assert len(fleet.engine._ranks[1].missed) == 1, "only the last switch is needed"
    await back(fleet, 1)
    # Two requests that were admitted before the switches reach the engines after them.
    tasks = [
        fleet.begin(make_request(f"r{i}", NGRAM, prompt=(i, 5), max_tokens=ENDLESS))
        for i in range(2)
    ]
    await eventually(lambda: fleet.running == [1, 1])
    assert methods(fleet, 0) == methods(fleet, 1) == {SUFFIX}
    await end(tasks)


async def test_an_engine_that_is_back_has_the_last_switch_of_running_requests(
    start: StartFleet,
) -> None:
    fleet = await start()
    kills(fleet, 1)
    await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    await fleet.engine.switch(Switch(NGRAM, 2), running=False)
    await back(fleet, 1)
    switches = [rank._last_running_switch for rank in fleet.ranks]
    assert switches == [Switch(SUFFIX, 1)] * 2


async def test_an_engine_that_dies_in_a_switch_gets_it_when_it_is_back(start: StartFleet) -> None:
    fleet = await start(fake_restart_s=0.02, **SLOW)
    fails_once(fleet.ranks[1], "switch")
    await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    await eventually(lambda: fleet.engine.failures == (None, None))
    assert fleet.ranks[1]._last_running_switch == Switch(SUFFIX, 1)


async def test_a_switch_fails_if_no_engine_is_left(start: StartFleet) -> None:
    fleet = await start()
    kills(fleet, 0)
    fails_once(fleet.ranks[1], "switch")
    with pytest.raises(EngineDead):
        await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    with pytest.raises(EngineDead, match="None of the 2 engines"):
        await fleet.engine.switch(Switch(SUFFIX, 2), running=True)
    assert not any(rank.missed for rank in fleet.engine._ranks)


async def test_an_engine_that_is_given_up_misses_nothing(start: StartFleet) -> None:
    fleet = await start()
    fleet.ranks[1].die()
    await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    assert not fleet.engine._ranks[1].missed
