"""A revision of `user_config` is applied once, by a fleet that knows its replicas."""

import asyncio

import pytest

from server.fleet.replica import FleetReport, Order
from tests.server.conftest import StartGateway
from tests.server.fleet.in_flight import begun
from tests.server.gateway import eventually
from tests.server.ray_serve.house import NAMES, House, order


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


async def test_a_revision_that_is_answered_late_does_not_lower_the_last_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    attendance, going_on = house.attendances["b"], asyncio.Event()
    declare = house.running.declare

    async def late(revision: int, wanted: Order) -> FleetReport | None:
        report = await declare(revision, wanted)
        if revision == 2:
            await going_on.wait()
        return report

    monkeypatch.setattr(house.running, "declare", late)
    declaring = asyncio.create_task(attendance.declare(2, order("ngram")))
    await eventually(lambda: set(house.states().values()) == {("ngram", 1)})
    await attendance.declare(3, order("none"))
    going_on.set()
    await declaring
    assert attendance.revision == 3


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
