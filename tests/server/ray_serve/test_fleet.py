"""A fleet without Ray: replicas that join, refuse, start late and die, and a fleet that dies."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from server.control.method_names import SelectionError
from server.fleet.replica import FleetOutcome, Prepared, ReplicaOutcome
from server.ray_serve import attendance, remote_replica
from tests.server.conftest import StartGateway
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
        replica = house.attendances[name]._replica
        await replica.prepare("half", order("ngram"), 30.0)
        house.attendances[name]._reserved.add("half")
    for name in "ab":
        await house.attendances[name]._replica.commit("half", 1)
        house.attendances[name]._reserved.discard("half")
    house.lose_fleet()
    await eventually(lambda: not any(g.runtime.switcher.busy for g in house.gateways.values()))
    assert house.states()["c"] == ("draft", 0)
    house.new_fleet()
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
async def test_a_caller_that_leaves_after_the_switch_leaves_nobody_behind(
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


async def test_a_new_fleet_knows_the_last_revision(house: House) -> None:
    await house.running.declare(4, order("ngram"))
    house.attendances["d"].revision = 4
    house.lose_fleet()
    house.new_fleet()
    await eventually(lambda: house.running.num_replicas == 4)
    assert await house.running.declare(4, order("none")) is None


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


async def test_a_replica_that_leaves_is_forgotten(house: House) -> None:
    await house.attendances["d"].end()
    report = await house.running.switch(order("ngram"))
    assert report is not None
    assert {replica.replica for replica in report.replicas} == {"a", "b", "c"}


async def test_the_metrics_of_every_replica(house: House) -> None:
    assert set(await house.running.metrics()) == set(NAMES)
