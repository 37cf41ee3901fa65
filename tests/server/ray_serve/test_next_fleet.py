"""A fleet whose process ends, and the next one: it learns from the replicas what is in force."""

import asyncio

import pytest

from server.fleet.replica import ReplicaOutcome
from server.ray_serve.remote_replica import CANCEL, Answer, Call, RemoteReplica
from tests.server.conftest import StartGateway
from tests.server.fleet.gate import Gate
from tests.server.gateway import eventually
from tests.server.ray_serve.house import NAMES, House, order


async def test_a_new_fleet_learns_what_is_in_force_from_its_replicas(house: House) -> None:
    await house.running.switch(order("ngram"))
    await house.running.switch(order("none"))
    house.lose_fleet()
    await eventually(lambda: house.noticed == set(NAMES))
    assert house.states() == dict.fromkeys(NAMES, ("none", 2))
    house.new_fleet()
    await eventually(lambda: house.running.num_replicas == 4)
    status = await house.running.status()
    assert status.in_force is not None
    assert status.in_force.fleet_generation == 2
    await house.running.switch(order("ngram"))
    assert house.states() == dict.fromkeys(NAMES, ("ngram", 3))


async def test_a_switch_that_the_fleet_did_not_survive_is_completed(house: House) -> None:
    """Half of the replicas were told to commit when the fleet died."""
    for name in NAMES:
        await house.attendances[name]._replica.prepare("half", order("ngram"), 30.0)
    for name in "ab":
        await house.attendances[name]._replica.commit("half", 1)
    house.lose_fleet()
    await eventually(lambda: not any(g.runtime.switcher.busy for g in house.gateways.values()))
    assert house.states()["c"] == ("draft", 0)
    house.new_fleet()
    await eventually(lambda: set(house.states().values()) == {("ngram", 1)})


async def test_a_drain_ends_with_the_fleet_that_began_it(house: House) -> None:
    """Otherwise this replica alone would have the method later, after it has joined again."""
    gateway = house.gateways["a"]
    request = asyncio.create_task(gateway.complete(max_tokens=2000, ignore_eos=True, temperature=0))
    await eventually(lambda: len(gateway.runtime.switcher.in_flight) == 1)
    switching = asyncio.create_task(house.running.switch(order("ngram", mode="drain")))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    house.lose_fleet()
    await eventually(lambda: gateway.runtime.switcher.drain is None)
    assert len(gateway.runtime.switcher.in_flight) == 1, "it would have ended by itself otherwise"
    house.new_fleet()
    await eventually(lambda: house.running.num_replicas == 4)
    await eventually(lambda: len(set(house.states().values())) == 1)
    switching.cancel()
    await asyncio.gather(switching, return_exceptions=True)
    assert (await request).status_code == 200
    assert len(set(house.states().values())) == 1


async def test_a_rollback_that_fails_does_not_end_the_attendance(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = house.gateways["a"].runtime.fleet
    failures = 0

    async def broken(*_: object) -> None:
        nonlocal failures
        failures += 1
        raise RuntimeError("no memory")

    member.prepare("one", order("ngram"), 300.0)
    monkeypatch.setattr(member, "rollback", broken)
    house.lose_fleet()
    await eventually(lambda: failures > 0)
    house.new_fleet()
    await eventually(lambda: house.running.num_replicas == 4)
    report = await house.running.switch(order("ngram"))
    assert report is not None
    # It answers, and stays reserved until its lease ends.
    outcomes = {replica.replica: replica.outcome for replica in report.replicas}
    assert [name for name in NAMES if outcomes[name] is ReplicaOutcome.REFUSED] == ["a"]


async def test_a_replica_joins_again_only_when_what_it_was_told_has_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fleet had given up the roll back when it died, and the engine is still in it.

    Meanwhile the next process switches the others. The roll back gives the replica a number above
    that switch, which must not undo it.
    """
    attending = house.attendances["a"]
    await attending._replica.prepare("half", order("ngram"), 30.0)
    await attending._replica.commit("half", 1)
    gate = Gate(house.gateways["a"].engine, "switch", monkeypatch)
    call = Call("rollback", ("half", 2))
    attending._begin_call(call)
    await gate.reached.wait()
    attending._begin_call(Call(CANCEL, (call.id,)))
    house.lose_fleet()
    await eventually(lambda: house.noticed == set(NAMES))
    house.new_fleet()
    await eventually(lambda: house.running.num_replicas == 3)
    report = await house.running.switch(order("suffix"))
    assert report is not None
    assert {replica.replica for replica in report.replicas} == {"b", "c", "d"}
    gate.open()
    await eventually(lambda: set(house.states().values()) == {("suffix", 3)})
    assert house.running.num_replicas == 4


async def test_a_call_that_reserves_a_replica_whose_fleet_is_gone_is_ended_too(
    house: House,
) -> None:
    """It came with the last calls, and has not begun when the loss is noticed."""
    attending, gateway = house.attendances["a"], house.gateways["a"]
    attending._begin_call(Call("prepare", ("late", order("ngram"), 300.0)))
    await attending._end_calls()
    assert not gateway.runtime.switcher.busy
    assert [record.outcome for record in gateway.runtime.audit.switches] == ["abandoned"]


@pytest.mark.parametrize("generation", [1, 9])
async def test_a_replica_that_missed_a_switch_does_not_undo_it(
    house: House, start: StartGateway, generation: int
) -> None:
    """It has a number of an earlier process of the fleet that is as high, or higher."""
    gateway = await start()
    member = gateway.runtime.fleet
    member.prepare("earlier", order("suffix"), 300.0)
    await member.commit("earlier", generation)
    await house.running.switch(order("ngram"))
    await house.add("late", gateway)
    assert house.states() == dict.fromkeys((*NAMES, "late"), ("ngram", generation + 1))
    report = await house.running.switch(order("none"))
    assert report is not None
    assert report.fleet_generation == generation + 2


async def test_a_replica_that_missed_a_change_of_policies_takes_it(
    house: House, start: StartGateway
) -> None:
    """It has the method and the number of the others, with the policies of an earlier process."""
    gateway = await start()
    member = gateway.runtime.fleet
    earlier = order("ngram", policies={"load": {"disable_by_batch_size": 3}})
    member.prepare("earlier", earlier, 300.0)
    await member.commit("earlier", 1)
    policies = {"load": {"disable_by_batch_size": 12}}
    await house.running.switch(order("ngram", policies=policies))
    await house.add("late", gateway)
    assert house.states() == dict.fromkeys((*NAMES, "late"), ("ngram", 2))
    assert member.state().policies == policies


async def test_an_answer_to_an_earlier_fleet_is_dropped() -> None:
    """A call that the fleet's last process began ends after the next one has called too."""

    async def is_alive() -> bool:
        return True

    asked = [RemoteReplica("a", is_alive) for _ in range(2)]
    asking = [asyncio.create_task(replica.metrics()) for replica in asked]
    (early,), (late,) = [await replica.collect(30.0) for replica in asked]
    asked[1].answer(Answer(early.id, "of the earlier call"))
    asked[1].answer(Answer(late.id, "of the later call"))
    assert await asking[1] == "of the later call"
    asking[0].cancel()
