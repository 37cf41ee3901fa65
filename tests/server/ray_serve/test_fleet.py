"""A fleet under Serve, without Ray: replicas that switch, refuse, start late and die."""

import asyncio

import pytest

from server.errors import Unavailable
from server.fleet.coordinator import FleetOutcome, switch_fleet
from server.fleet.desired import DesiredState
from server.fleet.replica import FleetSwitch, Way
from tests.server.conftest import StartGateway
from tests.server.gateway import eventually
from tests.server.ray_serve.house import NAMES, House


@pytest.mark.parametrize("mode", ["immediate", "new_requests", "drain"])
async def test_a_switch_that_any_replica_runs_reaches_all(house: House, mode: str) -> None:
    for number, (name, method) in enumerate((("a", "ngram"), ("c", "none"), ("d", "draft")), 1):
        report = await switch_fleet(house.fleets[name], FleetSwitch(method, way=Way(mode)))
        assert report.outcome is FleetOutcome.SWITCHED
        assert house.states() == dict.fromkeys(NAMES, (method, number))
        assert [replica.replica for replica in report.replicas] == list(NAMES)


async def test_two_switches_at_a_time_leave_one_state(house: House) -> None:
    fleet_switches = (
        FleetSwitch("ngram"),
        FleetSwitch("none", policies={"auto": {"min_gain": 0.5}}),
    )
    fleets = house.fleets["a"], house.fleets["b"]
    await asyncio.gather(*(switch_fleet(f, o) for f, o in zip(fleets, fleet_switches, strict=True)))
    assert len(set(house.states().values())) == 1


async def test_a_replica_that_refuses_keeps_no_other_back(house: House) -> None:
    await house.gateways["c"].runtime.engine.unload_proposer("ngram")
    report = await switch_fleet(house.fleets["a"], FleetSwitch("ngram"))
    outcomes = [str(replica.outcome) for replica in report.replicas]
    assert outcomes == ["switched", "switched", "lags", "switched"]
    assert house.states() == dict.fromkeys(NAMES, ("ngram", 1)) | {"c": ("draft", 0)}


async def test_a_replica_that_has_died_is_no_part_of_the_fleet(house: House) -> None:
    house.dead.add("b")
    report = await switch_fleet(house.fleets["a"], FleetSwitch("ngram"))
    assert report.outcome is FleetOutcome.SWITCHED
    assert [replica.replica for replica in report.replicas] == ["a", "c", "d"]
    assert house.states() == dict.fromkeys("acd", ("ngram", 1))


async def test_a_replica_that_hangs_makes_the_fleet_unavailable(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.ray_serve.fleet.CALL_S", 0.05)
    house.hung.add("b")
    with pytest.raises(Unavailable, match="do not all answer"):
        await switch_fleet(house.fleets["a"], FleetSwitch("ngram"))


async def test_a_fault_of_a_replica_is_reported(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: FleetSwitch) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(house.fleets["b"].member, "check", broken)
    report = await switch_fleet(house.fleets["a"], FleetSwitch("ngram"))
    # It was told nevertheless.
    assert report.outcome is FleetOutcome.SWITCHED
    assert report.replicas[1].previous is None or report.replicas[1].active is not None


async def test_a_replica_that_starts_takes_the_state_of_the_others(
    house: House, start: StartGateway
) -> None:
    await switch_fleet(house.fleets["a"], FleetSwitch("ngram"))
    await house.add("late", await start())
    assert house.states()["late"] == ("ngram", 1)
    report = await switch_fleet(house.fleets["late"], FleetSwitch("none"))
    assert report.desired is not None
    assert report.desired.generation == 2
    assert house.states() == dict.fromkeys((*NAMES, "late"), ("none", 2))


async def test_a_replica_that_serve_did_not_call_follows(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while Serve reconfigures it, or does not know it yet."""
    house.hidden.add("d")
    await switch_fleet(house.fleets["a"], FleetSwitch("ngram"))
    assert house.states()["d"] == ("draft", 0)
    follower = house.fleets["d"]._follower
    assert follower is not None
    await follower.learn(1)
    assert house.states()["d"] == ("ngram", 1)


async def test_a_replica_asks_by_itself(
    house: House, start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.ray_serve.fleet.POLL_S", 0.02)
    await house.add("late", await start())
    await house.fleets["a"].member.set(DesiredState(5, "ngram", 5))
    await eventually(lambda: house.states()["late"] == ("ngram", 5))


async def test_a_replica_that_cannot_have_the_state_serves_with_its_own(
    house: House, start: StartGateway
) -> None:
    await switch_fleet(house.fleets["a"], FleetSwitch("ngram"))
    gateway = await start(proposer=({"name": "suffix"},), spec_method="suffix")
    other = await house.add("other", gateway)
    assert house.states()["other"] == ("suffix", 0)
    lag = other.member.status().lag
    assert lag is not None
    assert lag.code == "proposer_not_found"
    states = await house.fleets["a"].states()
    assert states["other"].fleet.lag == lag


async def test_the_first_replica_starts_without_an_answer(start: StartGateway) -> None:
    house = House()
    await house.add("a", await start())
    assert house.states() == {"a": ("draft", 0)}
    await house.close()


async def test_a_replica_that_starts_waits_until_serve_tells_it_of_the_others(
    house: House, start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.ray_serve.fleet.START_S", 300.0)
    await switch_fleet(house.fleets["a"], FleetSwitch("ngram"))
    house.hidden |= set(NAMES)
    starting = asyncio.create_task(house.add("late", await start()))
    await asyncio.sleep(0.05)
    assert not starting.done()
    house.hidden.clear()
    await starting
    assert house.states()["late"] == ("ngram", 1)
