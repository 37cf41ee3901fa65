"""A fleet without Ray: replicas that join, refuse, start late and die."""

import asyncio
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
from tests.server.conftest import StartGateway
from tests.server.fleet.in_flight import begun
from tests.server.gateway import eventually
from tests.server.ray_serve.house import NAMES, House, order


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


async def test_a_method_that_is_not_possible_for_a_time_is_taken_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mailbox is never empty for long: the metrics are asked for all the while."""
    monkeypatch.setattr("server.ray_serve.attendance.TAKE_S", 0.02)
    for name in "bcd":
        member = house.gateways[name].runtime.fleet
        member.prepare("half", order("ngram"), 300.0)
        await member.commit("half", 1)
    house.lose_fleet()
    member = house.gateways["a"].runtime.fleet
    adopt, refusals, is_possible = member.adopt, 0, False

    async def adopt_later(state: ReplicaState) -> bool:
        nonlocal refusals
        if not is_possible:
            refusals += 1
            raise ProposerQuarantined("ngram")
        return await adopt(state)

    async def scrape() -> None:
        while True:
            await house.running.metrics()
            await asyncio.sleep(0.005)

    monkeypatch.setattr(member, "adopt", adopt_later)
    house.new_fleet()
    scraping = asyncio.create_task(scrape())
    await eventually(lambda: refusals > 2)
    assert house.states()["a"] == ("draft", 0)
    is_possible = True
    await eventually(lambda: set(house.states().values()) == {("ngram", 1)})
    scraping.cancel()


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
