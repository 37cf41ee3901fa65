"""Two switches at one replica: none takes what the other did for its own."""

import asyncio
from typing import Any

import pytest

from engine_adapter.errors import EngineError
from server.control.errors import SwitchInProgress
from server.control.method_names import MethodRequest
from server.control.records import SpecMethodBody
from server.fleet.coordinator import switch_fleet
from server.fleet.local import LocalReplica
from server.fleet.replica import FleetOutcome, Order, ReplicaOutcome
from tests.server.fleet.gate import Gate
from tests.server.fleet.scripted import ScriptedReplica, refuse
from tests.server.gateway import Gateway, eventually

LONG_S = 300.0
LOAD = {"load": {"disable_by_batch_size": 3}}


async def test_a_replica_that_another_switch_has_reserved_does_not_count_as_restored(
    gateway: Gateway,
) -> None:
    """It has the policies of the first switch, and the method is the same before and after."""
    member = gateway.runtime.fleet
    other = ScriptedReplica("other", to=SpecMethodBody("draft", 4))

    async def refuse_late() -> None:
        await eventually(lambda: member.state().policies == LOAD)
        member.prepare("another", Order("ngram"), LONG_S)
        await refuse()

    other.on_commit = refuse_late
    order = Order("draft", policies=LOAD)
    report = await switch_fleet(
        [LocalReplica("one", member), other], order, lease_s=LONG_S, call_s=LONG_S
    )
    assert member.state().policies == LOAD
    assert (report.outcome, report.unknown) == (FleetOutcome.PARTIAL, ("one",))
    assert report.replicas[0].error == (
        "keeps what it got with generation 1: another switch has begun there"
    )
    assert report.replicas[1].outcome is ReplicaOutcome.REFUSED


async def test_no_switch_begins_while_a_roll_back_sets_the_policies_back(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, admin = gateway.runtime.fleet, gateway.runtime.policy_admin
    before = admin.parameters(["load"])
    member.prepare("one", Order("ngram", policies=LOAD), LONG_S)
    await member.commit("one", 1)
    gate = Gate(gateway.engine, "set_policy", monkeypatch)
    undoing = asyncio.create_task(member.rollback("one", 2))
    await gate.reached.wait()
    with pytest.raises(SwitchInProgress):
        member.prepare("another", Order("suffix"), LONG_S)
    gate.open()
    state = await undoing
    assert (state.active, state.fleet_generation) == (SpecMethodBody("draft", 4), 2)
    assert admin.parameters(["load"]) == before


async def test_a_roll_back_whose_policies_fail_reserves_the_replica_no_longer(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, admin = gateway.runtime.fleet, gateway.runtime.policy_admin
    before, set_policy = admin.parameters(["load"]), gateway.engine.set_policy

    async def fail(*_: Any) -> None:
        raise EngineError("no")

    member.prepare("one", Order("ngram", policies=LOAD), LONG_S)
    await member.commit("one", 1)
    monkeypatch.setattr(gateway.engine, "set_policy", fail)
    with pytest.raises(EngineError):
        await member.rollback("one", 2)
    assert not member.state().is_switching
    assert member.state().policies == LOAD
    monkeypatch.setattr(gateway.engine, "set_policy", set_policy)
    assert (await member.rollback("one", 2)).active == SpecMethodBody("draft", 4)
    assert admin.parameters(["load"]) == before


async def test_a_switch_that_fails_does_not_take_the_result_of_the_next_one(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one begins when the engine fails, before the first has heard of it."""
    runtime, switch = gateway.runtime, gateway.engine.switch
    before = runtime.policy_admin.parameters(["load"])
    following: list[asyncio.Task[Any]] = []

    async def fail_once(*args: Any, **kwargs: Any) -> None:
        if following:
            return await switch(*args, **kwargs)
        request = MethodRequest("suffix", None, True)
        following.append(asyncio.create_task(runtime.switcher.switch(request)))
        raise EngineError("no")

    monkeypatch.setattr(gateway.engine, "switch", fail_once)
    runtime.fleet.prepare("one", Order("ngram", policies=LOAD), LONG_S)
    with pytest.raises(EngineError):
        await runtime.fleet.commit("one", 1)
    await following[0]
    state = runtime.fleet.state()
    assert (state.active.spec_method, state.fleet_generation) == ("suffix", 0)
    assert runtime.policy_admin.parameters(["load"]) == before
