"""Changes reach all engines or none; an engine that was dead gets them when it is back."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine_adapter.errors import (
    EngineConfigError,
    EngineDead,
    EngineError,
    InvalidRequest,
    LoraRefused,
    ProposerRefused,
)
from engine_adapter.policies.parameters import PolicyError
from engine_adapter.types import SpecMethod, Switch
from tests.engine_adapter.data_parallel.conftest import StartFleet
from tests.engine_adapter.data_parallel.fleet import ENDLESS, Fleet, fails_once
from tests.engine_adapter.fake.harness import make_request, text
from tests.server.gateway import eventually

SLOW = {"fake_step_ms": 5, "fake_length": 4000}
NGRAM, SUFFIX = SpecMethod("ngram", 3), SpecMethod("suffix", 4)
OTHER = {"name": "other", "method": "ngram", "num_speculative_tokens": 2}


async def running(fleet: Fleet, method: SpecMethod) -> list[asyncio.Task[Any]]:
    """Four endless sequences of a method, two at each engine."""
    tasks = [
        fleet.begin(make_request(f"r{i}", method, prompt=(i, i + 1, i + 2), max_tokens=ENDLESS))
        for i in range(4)
    ]
    await eventually(lambda: fleet.running == [2, 2])
    return tasks


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def methods(fleet: Fleet, index: int) -> set[SpecMethod]:
    """The methods of an engine's sequences."""
    return {sequence.spec_method for sequence in fleet.sequences(index)}


def parameters(fleet: Fleet, index: int, policy: str) -> Any:
    return next(p.parameters for p in fleet.members[index].policies if p.name == policy)


def kills(fleet: Fleet, index: int) -> None:
    """Kills an engine whose replacement is announced; `back` replaces it."""
    fleet.members[index].die("killed", 60.0)


async def back(fleet: Fleet, index: int) -> None:
    """The replacement of a dead engine serves."""
    fleet.members[index]._lifetime._restart()
    await eventually(lambda: fleet.engine.failures[index] is None)


# -- switches ----------------------------------------------------------------------------------


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
    fails_once(fleet.members[1], "switch", EngineError("broken"))
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
    fails_once(fleet.members[0], "switch", EngineError("broken"))
    with pytest.raises(EngineError, match="broken"):
        await fleet.engine.switch(Switch(SpecMethod("ngram", 1), 2), running=True)
    assert methods(fleet, 0) == methods(fleet, 1) == {SUFFIX}
    await end(tasks)


async def test_an_engine_that_cannot_take_a_switch_back_serves_when_it_has(
    start: StartFleet,
) -> None:
    fleet = await start(**SLOW)
    tasks = await running(fleet, NGRAM)
    refuses, original = fleet.members[0], fleet.members[0].switch
    calls: list[Switch] = []

    async def switch(switch: Switch, *, running: bool) -> None:
        calls.append(switch)
        if len(calls) == 2:  # the first undoing
            assert fleet.engine.failures == (None, None)
            raise EngineError("not now")
        await original(switch, running=running)

    setattr(refuses, "switch", switch)  # noqa: B010
    fails_once(fleet.members[1], "switch", EngineError("broken"))
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
    assert len(fleet.engine._members[1].missed) == 1, "only the last switch is needed"
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
    switches = [member._last_running_switch for member in fleet.members]
    assert switches == [Switch(SUFFIX, 1)] * 2


async def test_an_engine_that_dies_in_a_switch_gets_it_when_it_is_back(start: StartFleet) -> None:
    fleet = await start(fake_restart_s=0.02, **SLOW)
    fails_once(fleet.members[1], "switch")
    await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    await eventually(lambda: fleet.engine.failures == (None, None))
    assert fleet.members[1]._last_running_switch == Switch(SUFFIX, 1)


async def test_a_switch_fails_if_no_engine_is_left(start: StartFleet) -> None:
    fleet = await start()
    kills(fleet, 0)
    fails_once(fleet.members[1], "switch")
    with pytest.raises(EngineDead):
        await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    with pytest.raises(EngineDead, match="None of the 2 engines"):
        await fleet.engine.switch(Switch(SUFFIX, 2), running=True)
    assert not any(member.missed for member in fleet.engine._members)


async def test_an_engine_that_is_given_up_misses_nothing(start: StartFleet) -> None:
    fleet = await start()
    fleet.members[1].die()
    await fleet.engine.switch(Switch(SUFFIX, 1), running=True)
    assert not fleet.engine._members[1].missed


# -- proposers ---------------------------------------------------------------------------------


async def test_a_proposer_is_loaded_and_unloaded_everywhere(start: StartFleet) -> None:
    fleet = await start()
    info = await fleet.engine.load_proposer(OTHER)
    assert (info.name, info.num_speculative_tokens) == ("other", 2)
    assert "other" in fleet.names(0)
    assert "other" in fleet.names(1)
    assert "other" in [shown.name for shown in await fleet.engine.proposers()]
    await fleet.engine.unload_proposer("other")
    assert "other" not in fleet.names(0) + fleet.names(1)


@pytest.mark.parametrize("refuses", [0, 1])
async def test_a_load_that_one_engine_refuses_is_undone(start: StartFleet, refuses: int) -> None:
    fleet = await start(own={refuses: {"fake_fail_load": "bad weights"}})
    with pytest.raises(EngineConfigError, match="bad weights"):
        await fleet.engine.load_proposer(OTHER)
    assert "other" not in fleet.names(0) + fleet.names(1)
    assert fleet.engine.failures == (None, None)


async def test_a_load_in_which_an_engine_dies_is_undone(start: StartFleet) -> None:
    fleet = await start(own={1: {"fake_die_at_call": "load"}})
    with pytest.raises(EngineDead):
        await fleet.engine.load_proposer(OTHER)
    assert "other" not in fleet.names(0) + fleet.names(1)
    assert not fleet.engine._members[1].missed


async def test_while_one_engine_loads_the_proposer_is_shown_so_and_no_other_change_begins(
    start: StartFleet,
) -> None:
    fleet = await start(own={1: {"fake_load_s": 60}})
    loading = asyncio.create_task(fleet.engine.load_proposer(OTHER))
    await eventually(lambda: "other" in fleet.names(0))
    assert "other" not in [info.name for info in fleet.engine.info.proposers]
    (shown,) = [info for info in await fleet.engine.proposers() if info.name == "other"]
    assert shown.state == "loading"
    with pytest.raises(ProposerRefused) as caught:
        await fleet.engine.unload_proposer("suffix")
    assert caught.value.code == "load_in_progress"
    await end([loading])


async def test_an_unload_that_one_engine_refuses_is_undone(start: StartFleet) -> None:
    fleet = await start()
    fails_once(fleet.members[1], "unload_proposer", ProposerRefused("proposer_in_use", "busy"))
    with pytest.raises(ProposerRefused, match="busy"):
        await fleet.engine.unload_proposer("ngram")
    assert set(fleet.names(0)) == set(fleet.names(1)) == {"ngram", "suffix", "prediction"}
    (ngram,) = [info for info in fleet.members[0].info.proposers if info.name == "ngram"]
    assert (ngram.method, ngram.num_speculative_tokens) == ("ngram", 3)


async def test_an_unknown_proposer_is_refused_as_by_one_engine(start: StartFleet) -> None:
    fleet = await start()
    with pytest.raises(ProposerRefused) as caught:
        await fleet.engine.unload_proposer("other")
    assert caught.value.code == "proposer_not_found"
    with pytest.raises(ProposerRefused, match="loaded already"):
        await fleet.engine.load_proposer({**OTHER, "name": "ngram"})
    assert set(fleet.names(0)) == {"ngram", "suffix", "prediction"}


async def test_an_engine_that_is_back_gets_loads_and_unloads_in_order(start: StartFleet) -> None:
    fleet = await start()
    kills(fleet, 1)
    await fleet.engine.unload_proposer("suffix")
    await fleet.engine.load_proposer({**OTHER, "name": "suffix"})
    await fleet.engine.load_proposer(OTHER)
    await fleet.engine.unload_proposer("ngram")
    await back(fleet, 1)
    assert fleet.names(0) == fleet.names(1) == ["prediction", "suffix", "other"]
    (suffix,) = [info for info in fleet.members[1].info.proposers if info.name == "suffix"]
    assert suffix.method == "ngram"


async def test_an_engine_serves_only_when_it_has_what_it_missed(start: StartFleet) -> None:
    fleet = await start()
    kills(fleet, 1)
    await fleet.engine.load_proposer(OTHER)
    fails_once(fleet.members[1], "load_proposer", EngineConfigError("proposer", "no disk"))
    with capture_logs() as logs:
        fleet.members[1]._lifetime._restart()
        await eventually(lambda: any(line["event"] == "engine_behind" for line in logs))
        assert "the load of other" in str(fleet.engine.failures[1])
        tasks = [
            fleet.begin(make_request(f"r{i}", SpecMethod("other", 2), prompt=(i, 1), max_tokens=5))
            for i in range(4)
        ]
        assert all(await asyncio.gather(*tasks))
        await eventually(lambda: fleet.engine.failures[1] is None)
    assert "other" in fleet.names(1)


# -- policies ----------------------------------------------------------------------------------


async def test_a_policy_is_set_everywhere(start: StartFleet) -> None:
    fleet = await start()
    info = await fleet.engine.set_policy("goodput", {"min_gain": 0.5})
    assert info.parameters["min_gain"] == 0.5
    assert parameters(fleet, 0, "goodput") == parameters(fleet, 1, "goodput") == info.parameters


async def test_a_policy_that_one_engine_does_not_take_stays(start: StartFleet) -> None:
    fleet = await start()
    await fleet.engine.set_policy("goodput", {"min_gain": 0.25})
    before = parameters(fleet, 0, "goodput")
    fails_once(fleet.members[1], "set_policy", EngineError("broken"))
    with pytest.raises(EngineError, match="broken"):
        await fleet.engine.set_policy("goodput", {"min_gain": 0.5})
    assert parameters(fleet, 0, "goodput") == parameters(fleet, 1, "goodput") == before


async def test_parameters_that_cannot_work_are_refused(start: StartFleet) -> None:
    fleet = await start()
    with pytest.raises(PolicyError, match="min_gain"):
        await fleet.engine.set_policy("goodput", {"min_gain": 7})


async def test_an_engine_that_is_back_has_the_parameters(start: StartFleet) -> None:
    fleet = await start()
    kills(fleet, 0)
    await fleet.engine.set_policy("goodput", {"min_gain": 0.5})
    await back(fleet, 0)
    assert parameters(fleet, 0, "goodput")["min_gain"] == 0.5


# -- LoRA adapters -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder that the fake engine accepts as an adapter."""
    (tmp_path / "adapter_config.json").write_text("{}")
    return str(tmp_path)


async def answer(fleet: Fleet, request_id: str, adapter: Any) -> str:
    request = replace(make_request(request_id, max_tokens=12), lora_adapter=adapter)
    return text(await fleet.run(request))


async def test_an_adapter_is_loaded_everywhere_and_answers_alike(
    start: StartFleet, folder: str
) -> None:
    fleet = await start(enable_lora=True)
    # The engines number adapters themselves, and one has counted a load that failed.
    with pytest.raises(EngineConfigError):
        await fleet.members[1].load_lora_adapter("broken", f"{folder}/none")
    adapter = await fleet.engine.load_lora_adapter("mine", folder)
    assert fleet.engine.lora_adapters == (adapter,)
    texts = {await answer(fleet, f"r{i}", adapter) for i in range(4)}
    assert len(texts) == 1
    assert texts != {await answer(fleet, "plain", None)}
    await fleet.engine.unload_lora_adapter("mine")
    assert fleet.engine.lora_adapters == ()
    assert not fleet.members[0].lora_adapters + fleet.members[1].lora_adapters
    with pytest.raises(InvalidRequest, match="was unloaded"):
        await answer(fleet, "late", adapter)


async def test_an_adapter_of_an_earlier_load_is_not_the_new_one(
    start: StartFleet, folder: str
) -> None:
    fleet = await start(enable_lora=True)
    old = await fleet.engine.load_lora_adapter("mine", folder)
    await fleet.engine.unload_lora_adapter("mine")
    new = await fleet.engine.load_lora_adapter("mine", folder)
    assert old != new
    with pytest.raises(InvalidRequest, match="was unloaded"):
        await answer(fleet, "late", old)


async def test_an_adapter_that_one_engine_refuses_is_loaded_nowhere(
    start: StartFleet, folder: str
) -> None:
    fleet = await start(enable_lora=True)
    fails_once(fleet.members[0], "load_lora_adapter", LoraRefused("no_room", "full"))
    with pytest.raises(LoraRefused, match="full"):
        await fleet.engine.load_lora_adapter("mine", folder)
    assert not fleet.members[0].lora_adapters + fleet.members[1].lora_adapters
    assert fleet.engine.lora_adapters == ()


async def test_an_adapter_in_use_at_one_engine_stays_at_all(start: StartFleet, folder: str) -> None:
    fleet = await start(enable_lora=True, **SLOW)
    adapter = await fleet.engine.load_lora_adapter("mine", folder)
    task = fleet.begin(replace(make_request(max_tokens=ENDLESS), lora_adapter=adapter))
    await eventually(lambda: sum(fleet.running) == 1)
    with pytest.raises(LoraRefused) as caught:
        await fleet.engine.unload_lora_adapter("mine")
    assert caught.value.code == "adapter_in_use"
    assert len(fleet.members[0].lora_adapters) == len(fleet.members[1].lora_adapters) == 1
    await end([task])


async def test_an_unload_of_an_adapter_that_one_engine_refuses_is_undone(
    start: StartFleet, folder: str
) -> None:
    fleet = await start(enable_lora=True)
    adapter = await fleet.engine.load_lora_adapter("mine", folder)
    fails_once(fleet.members[1], "unload_lora_adapter", LoraRefused("adapter_in_use", "busy"))
    with pytest.raises(LoraRefused, match="busy"):
        await fleet.engine.unload_lora_adapter("mine")
    assert fleet.engine.lora_adapters == (adapter,)
    assert {await answer(fleet, f"r{i}", adapter) for i in range(4)} != {""}


async def test_an_engine_that_is_back_gets_adapters(start: StartFleet, folder: str) -> None:
    fleet = await start(enable_lora=True, lora_modules=None)
    kills(fleet, 1)
    adapter = await fleet.engine.load_lora_adapter("mine", folder)
    await back(fleet, 1)
    assert [known.name for known in fleet.members[1].lora_adapters] == ["mine"]
    assert len({await answer(fleet, f"r{i}", adapter) for i in range(4)}) == 1


async def test_requests_go_to_the_engines_that_have_their_adapter(
    start: StartFleet, folder: str
) -> None:
    fleet = await start(enable_lora=True)
    adapter = await fleet.engine.load_lora_adapter("mine", folder)
    # As after a restart that could not read the adapter's files any more.
    await fleet.members[1].unload_lora_adapter("mine")
    assert len({await answer(fleet, f"r{i}", adapter) for i in range(4)}) == 1
    await fleet.members[0].unload_lora_adapter("mine")
    with pytest.raises(InvalidRequest, match="was unloaded"):
        await answer(fleet, "late", adapter)
