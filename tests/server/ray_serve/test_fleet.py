"""A fleet without Ray: replicas that join, refuse, start late and die, and a fleet that dies."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from server.control.errors import ProposerQuarantined
from server.control.method_names import SelectionError
from server.fleet.replica import (
    FleetOutcome,
    Prepared,
    ReplicaOutcome,
    ReplicaState,
    ReplicaUnreachable,
)
from server.ray_serve import attendance, remote_replica
from server.ray_serve.remote_replica import CANCEL, Answer, Call, RemoteReplica
from tests.server.conftest import StartGateway
from tests.server.fleet.gate import Gate
from tests.server.fleet.in_flight import begun
from tests.server.gateway import eventually
from tests.server.ray_serve.house import House, order

NAMES = ("a", "b", "c", "d")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_replica, "LOOK_S", 0.02)
    monkeypatch.setattr(attendance, "RETRY_S", 0.02)


@pytest.fixture
async def house(start: StartGateway) -> AsyncIterator[House]:
    """Four replicas."""
    made = House()
    for name in NAMES:
        await made.add(name, await start())
    yield made
    made.dead.clear()
    await made.close()


@pytest.mark.parametrize("mode", ["immediate", "new_requests", "drain"])
async def test_a_switch_is_made_at_every_replica(house: House, mode: str) -> None:
    for number, method in enumerate(("ngram", "none", "draft"), 1):
        report = await house.running.switch(order(method, mode=mode))
        assert report is not None
        assert report.outcome is FleetOutcome.SWITCHED
        assert house.states() == dict.fromkeys(NAMES, (method, number))
        assert len({replica.replica for replica in report.replicas}) == 4


async def test_one_switch_at_a_time(house: House) -> None:
    first, second = await asyncio.gather(
        house.running.switch(order("ngram")), house.running.switch(order("none"))
    )
    assert second is None
    assert first is not None
    assert house.states() == dict.fromkeys(NAMES, ("ngram", 1))


async def test_a_replica_that_refuses_keeps_all_as_they_were(house: House) -> None:
    await house.running.switch(order("draft"))
    await house.gateways["c"].runtime.engine.unload_proposer("ngram")
    report = await house.running.switch(order("ngram"))
    assert report is not None
    assert (report.outcome, report.fleet_generation) == (FleetOutcome.UNCHANGED, None)
    outcomes = {replica.replica: replica.outcome for replica in report.replicas}
    assert outcomes["c"] is ReplicaOutcome.REFUSED
    assert {outcomes[name] for name in "abd"} == {ReplicaOutcome.UNCHANGED}
    assert house.states() == dict.fromkeys(NAMES, ("draft", 1))


async def test_a_replica_that_dies_before_it_has_prepared_is_left_out(house: House) -> None:
    house.dead.add("b")
    report = await house.running.switch(order("ngram"))
    assert report is not None
    assert report.outcome is FleetOutcome.SWITCHED
    assert {replica.replica for replica in report.replicas} == {"a", "c", "d"}
    assert house.states() == dict.fromkeys("acd", ("ngram", 1))


@pytest.mark.parametrize("method", ["prepare", "commit"])
async def test_a_replica_that_dies_in_mid_switch_is_left_out(
    house: House, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    member = house.gateways["b"].runtime.fleet

    async def die(*_: object) -> Prepared:
        house.dead.add("b")
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(house.attendances["b"]._replica, method, die)
    report = await house.running.switch(order("ngram"))
    assert report is not None
    assert report.outcome is FleetOutcome.SWITCHED
    assert {replica.replica for replica in report.replicas} == {"a", "c", "d"}
    ((name, generation),) = set(house.states().values())
    assert name == "ngram"
    # A commit that was rolled back has used numbers.
    assert generation == (1 if method == "prepare" else 3)
    assert member.state().active.spec_method == "draft"


async def test_a_replica_that_starts_during_a_switch_has_its_method(
    house: House, start: StartGateway
) -> None:
    gateway = await start()
    going_on = asyncio.Event()
    replica = house.attendances["a"]._replica
    commit = replica.commit

    async def slow_commit(switch_id: str, generation: int) -> object:
        await going_on.wait()
        return await commit(switch_id, generation)

    replica.commit = slow_commit  # type: ignore[assignment, method-assign]
    switching = asyncio.create_task(house.running.switch(order("ngram")))
    joining = asyncio.create_task(house.add("late", gateway))
    await eventually(lambda: house.states()["b"] == ("ngram", 1))
    assert not joining.done()
    going_on.set()
    await asyncio.gather(switching, joining)
    assert house.states() == dict.fromkeys((*NAMES, "late"), ("ngram", 1))
    await house.running.switch(order("none"))
    assert house.states() == dict.fromkeys((*NAMES, "late"), ("none", 2))


async def test_a_replica_that_cannot_have_the_fleets_method_does_not_start(
    house: House, start: StartGateway
) -> None:
    await house.running.switch(order("ngram"))
    gateway = await start(proposer=({"name": "suffix"},), spec_method="suffix")
    with pytest.raises(SelectionError, match="ngram"):
        await house.add("other", gateway)


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


async def test_a_method_that_is_not_possible_for_a_time_is_taken_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.ray_serve.fleet.COLLECT_S", 0.02)
    house.lose_fleet()
    for name in "bcd":
        member = house.gateways[name].runtime.fleet
        member.prepare("half", order("ngram"), 300.0)
        await member.commit("half", 1)
    member = house.gateways["a"].runtime.fleet
    adopt, refusals, is_possible = member.adopt, 0, False

    async def adopt_later(state: ReplicaState) -> bool:
        nonlocal refusals
        if not is_possible:
            refusals += 1
            raise ProposerQuarantined("ngram")
        return await adopt(state)

    monkeypatch.setattr(member, "adopt", adopt_later)
    house.new_fleet()
    await eventually(lambda: refusals > 2)
    assert house.states()["a"] == ("draft", 0)
    is_possible = True
    await eventually(lambda: set(house.states().values()) == {("ngram", 1)})


async def test_a_caller_that_leaves_ends_a_drain_at_every_replica(house: House) -> None:
    gateway = house.gateways["a"]
    request, let_it_end = await begun(gateway)
    switching = asyncio.create_task(house.running.switch(order("ngram", mode="drain")))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    switching.cancel()
    await asyncio.gather(switching, return_exceptions=True)
    await eventually(lambda: not gateway.runtime.switcher.busy)
    assert {name for name, _ in house.states().values()} == {"draft"}
    let_it_end()
    assert (await request).status_code == 200


@pytest.mark.parametrize("keeps_method", [False, True])
async def test_a_caller_that_leaves_after_the_switch_leaves_no_replica_behind(
    house: House, start: StartGateway, keeps_method: bool
) -> None:
    """It is cancelled when all have switched and the fleet asks them what they have."""
    reached, going_on = asyncio.Event(), asyncio.Event()
    replica = house.attendances["a"]._replica
    state = replica.state

    async def slow_state() -> object:
        reached.set()
        await going_on.wait()
        return await state()

    replica.state = slow_state  # type: ignore[assignment, method-assign]
    switching = asyncio.create_task(house.running.switch(order("ngram")))
    await reached.wait()
    switching.cancel()
    await asyncio.gather(switching, return_exceptions=True)
    going_on.set()
    if keeps_method:
        await house.running.set_policies(order(None, policies={"goodput": {"min_gain": 0.5}}))
        assert house.states() == dict.fromkeys(NAMES, ("ngram", 2))
    else:
        await house.add("late", await start())
        assert house.states() == dict.fromkeys((*NAMES, "late"), ("ngram", 1))


async def test_a_revision_is_applied_once(house: House, start: StartGateway) -> None:
    first, second = await asyncio.gather(
        house.running.declare(1, order("ngram")), house.running.declare(1, order("ngram"))
    )
    assert (first is None) is not (second is None)
    await house.running.switch(order("none"))
    assert await house.running.declare(1, order("ngram")) is None
    assert house.states() == dict.fromkeys(NAMES, ("none", 2))
    assert await house.running.declare(2, order("ngram")) is not None
    assert house.states() == dict.fromkeys(NAMES, ("ngram", 3))


async def test_a_revision_whose_caller_is_gone_is_applied_by_the_next_one(house: House) -> None:
    gateway = house.gateways["a"]
    request, let_it_end = await begun(gateway)
    declaring = asyncio.create_task(house.running.declare(1, order("ngram", mode="drain")))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    declaring.cancel()
    await asyncio.gather(declaring, return_exceptions=True)
    let_it_end()
    assert (await request).status_code == 200
    report = await house.attendances["b"].declare(1, order("ngram"))
    assert report is not None
    assert {name for name, _ in house.states().values()} == {"ngram"}


async def test_a_revision_waits_for_a_fleet_that_answers(house: House) -> None:
    """And for the first replica in it, as the replica that brings it may be faster than any."""
    house.lose_fleet()
    declaring = asyncio.create_task(house.attendances["b"].declare(1, order("ngram")))
    await eventually(lambda: house.noticed == set(NAMES))
    house.new_fleet()
    report = await declaring
    assert report is not None
    assert house.attendances["b"].revision == 1
    await eventually(lambda: set(house.states().values()) == {("ngram", 1)})
    assert await house.attendances["b"].declare(1, order("none")) is None


async def test_a_new_fleet_knows_the_last_revision(house: House) -> None:
    await house.running.declare(4, order("ngram"))
    house.attendances["d"].revision = 4
    house.lose_fleet()
    house.new_fleet()
    await eventually(lambda: house.running.num_replicas == 4)
    assert await house.running.declare(4, order("none")) is None


async def test_a_new_fleet_waits_for_its_replicas_before_it_switches(house: House) -> None:
    """A replica that starts brings an old `user_config` before the others are there again."""
    await house.running.declare(4, order("ngram"))
    await house.running.switch(order("none"))
    house.attendances["d"].revision = 4
    house.new_fleet(rejoin_s=3600.0)
    declaring = asyncio.create_task(house.running.declare(4, order("ngram")))
    await eventually(lambda: house.running.num_replicas == 4)
    assert (await house.running.status()).is_switching
    assert not declaring.done()
    declaring.cancel()
    await asyncio.gather(declaring, return_exceptions=True)
    house.new_fleet(rejoin_s=0.0)
    await eventually(lambda: house.running.num_replicas == 4)
    assert await house.running.declare(4, order("ngram")) is None
    assert house.states() == dict.fromkeys(NAMES, ("none", 2))


async def test_a_declared_switch_is_a_switch_that_runs(house: House) -> None:
    gateway = house.gateways["a"]
    request = asyncio.create_task(gateway.complete(max_tokens=2000, ignore_eos=True, temperature=0))
    await eventually(lambda: len(gateway.runtime.switcher.in_flight) == 1)
    declaring = asyncio.create_task(house.running.declare(1, order("ngram", mode="drain")))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    assert (await house.running.status()).is_switching
    assert await house.running.switch(order("none")) is None
    declaring.cancel()
    await asyncio.gather(declaring, return_exceptions=True)
    assert not (await house.running.status()).is_switching
    assert (await request).status_code == 200


async def test_what_is_in_force_is_asked_until_a_replica_answers(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.running.switch(order("ngram"))
    known = house.running._in_force

    async def silent() -> None:
        raise ReplicaUnreachable("it is busy")

    for each in house.attendances.values():
        monkeypatch.setattr(each._replica, "state", silent)
    house.running._in_force = replace(known, fleet_generation=0) if known else None
    house.running._is_settled = False
    await house.running._settle()
    monkeypatch.undo()
    await house.running._settle()
    assert house.running._in_force == known


async def test_policies_are_set_at_every_replica_and_the_method_stays(house: House) -> None:
    await house.running.switch(order("ngram"))
    given = {"goodput": {"min_gain": 0.5}}
    report = await house.running.set_policies(order(None, mode="new_requests", policies=given))
    assert report is not None
    assert report.outcome is FleetOutcome.SWITCHED
    assert house.states() == dict.fromkeys(NAMES, ("ngram", 2))
    for gateway in house.gateways.values():
        (policy,) = (p for p in gateway.runtime.engine.policies if p.name == "goodput")
        assert policy.parameters["min_gain"] == 0.5


async def test_a_replica_that_leaves_in_mid_switch_is_left_out(house: House) -> None:
    reached = asyncio.Event()

    async def silent(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    house.attendances["d"]._replica.commit = silent  # type: ignore[assignment, method-assign]
    switching = asyncio.create_task(house.running.switch(order("ngram")))
    await reached.wait()
    await house.attendances["d"].end()
    report = await switching
    assert report is not None
    assert report.outcome is FleetOutcome.SWITCHED
    assert {replica.replica for replica in report.replicas} == {"a", "b", "c"}
    assert {house.states()[name][0] for name in "abc"} == {"ngram"}


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


async def test_a_replica_that_leaves_is_forgotten(house: House) -> None:
    await house.attendances["d"].end()
    report = await house.running.switch(order("ngram"))
    assert report is not None
    assert {replica.replica for replica in report.replicas} == {"a", "b", "c"}


async def test_the_metrics_of_every_replica(house: House) -> None:
    assert set(await house.running.metrics()) == set(NAMES)


async def test_a_replica_keeps_the_method_of_its_arguments_in_a_fleet_that_never_switched(
    house: House, start: StartGateway
) -> None:
    """As when new arguments are deployed: the replicas are replaced one after the other."""
    await house.add("new", await start(spec_method="ngram"))
    assert house.states() == dict.fromkeys(NAMES, ("draft", 0)) | {"new": ("ngram", 0)}
