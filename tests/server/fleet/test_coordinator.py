"""All replicas switch, or none; what is not known is named."""

import asyncio
from dataclasses import replace

import pytest

from server.control.records import SpecMethodBody
from server.fleet.coordinator import switch_fleet
from server.fleet.replica import FleetOutcome, FleetReport, Order, ReplicaOutcome
from tests.server.fleet.scripted import NEW, OLD, ScriptedReplica, be_gone, hang, refuse
from tests.server.gateway import eventually

ORDER = Order("ngram")


def fleet(number: int = 4) -> list[ScriptedReplica]:
    return [ScriptedReplica(f"r{i}", generation=i) for i in range(number)]


def outcomes(report: FleetReport) -> list[str]:
    return [str(one.outcome) for one in report.replicas]


def has(replicas: list[ScriptedReplica]) -> set[tuple[SpecMethodBody, int]]:
    return {(one.method, one.generation) for one in replicas}


async def test_every_replica_gets_the_method_and_a_number_above_all() -> None:
    replicas = fleet()
    report = await switch_fleet(replicas, ORDER)
    assert report.outcome == FleetOutcome.SWITCHED
    assert report.fleet_generation == 4
    assert has(replicas) == {(NEW, 4)}
    assert outcomes(report) == ["switched"] * 4
    assert [one.replica for one in report.replicas] == ["r0", "r1", "r2", "r3"]
    assert {(o.previous, o.active, o.in_flight) for o in report.replicas} == {(OLD, NEW, 3)}
    assert all(one.calls == ["prepare", "commit"] for one in replicas)


async def test_no_replica_commits_before_all_have_prepared() -> None:
    replicas, gate = fleet(), asyncio.Event()
    replicas[3].on_prepare = lambda: _until(gate)
    running = asyncio.create_task(switch_fleet(replicas, ORDER))
    await eventually(lambda: all(one.calls for one in replicas))
    assert all(one.calls == ["prepare"] for one in replicas)
    gate.set()
    assert (await running).outcome == FleetOutcome.SWITCHED


async def test_where_one_refuses_to_prepare_all_are_released_and_nothing_changes() -> None:
    replicas = fleet()
    replicas[1].on_prepare = refuse
    report = await switch_fleet(replicas, ORDER)
    assert report.outcome == FleetOutcome.UNCHANGED
    assert report.fleet_generation is None
    assert report.error == "r1: no"
    assert outcomes(report) == ["unchanged", "refused", "unchanged", "unchanged"]
    assert report.replicas[1].code == "some_code"
    assert [(one.method, one.generation) for one in replicas] == [(OLD, i) for i in range(4)]
    assert not any(one.reserved for one in replicas)
    assert not any("commit" in one.calls for one in replicas)


async def test_a_replica_that_does_not_answer_counts_as_one_that_refuses() -> None:
    replicas = fleet()
    replicas[2].on_prepare = replicas[2].on_rollback = be_gone
    report = await switch_fleet(replicas, ORDER)
    assert report.outcome == FleetOutcome.UNCHANGED
    assert outcomes(report) == ["unchanged", "unchanged", "unknown", "unchanged"]
    assert not any(one.reserved for one in replicas)


async def test_a_replica_that_does_not_answer_can_be_skipped_and_the_next_call_heals_it() -> None:
    replicas = fleet()
    replicas[2].on_prepare = replicas[2].on_rollback = be_gone
    report = await switch_fleet(replicas, ORDER, skip_unreachable=True)
    assert report.outcome == FleetOutcome.PARTIAL
    assert outcomes(report) == ["switched", "switched", "unknown", "switched"]
    assert replicas[2].method == OLD

    replicas[2].on_prepare = lambda: _until(None)
    healed = await switch_fleet(replicas, ORDER)
    assert healed.outcome == FleetOutcome.SWITCHED
    assert has(replicas) == {(NEW, healed.fleet_generation)}


async def test_a_refusal_is_not_skipped() -> None:
    replicas = fleet()
    replicas[0].on_prepare = refuse
    report = await switch_fleet(replicas, ORDER, skip_unreachable=True)
    assert report.outcome == FleetOutcome.UNCHANGED


async def test_where_a_commit_fails_those_that_switched_are_switched_back() -> None:
    replicas, others = fleet(), asyncio.Event()

    async def refuse_after_the_others() -> None:
        await others.wait()
        await refuse()

    replicas[3].on_commit = refuse_after_the_others
    running = asyncio.create_task(switch_fleet(replicas, ORDER))
    await eventually(lambda: all(one.method == NEW for one in replicas[:3]))
    others.set()
    report = await running
    assert report.outcome == FleetOutcome.ROLLED_BACK
    assert report.error == "r3: no"
    assert outcomes(report) == ["restored", "restored", "restored", "refused"]
    assert has(replicas) == {(OLD, 5)}, "one above the number that was given up"
    assert report.fleet_generation == 5


async def test_a_commit_whose_answer_is_lost_is_rolled_back() -> None:
    replicas = fleet()
    replicas[0].after_commit = be_gone
    report = await switch_fleet(replicas, ORDER)
    assert report.outcome == FleetOutcome.ROLLED_BACK
    assert has(replicas) == {(OLD, 5)}
    assert report.replicas[0].error == "gone"
    assert report.replicas[0].active == OLD


async def test_a_replica_that_dies_during_its_commit_is_named() -> None:
    replicas = fleet()
    replicas[0].on_commit = replicas[0].on_rollback = be_gone
    report = await switch_fleet(replicas, ORDER)
    assert report.outcome == FleetOutcome.PARTIAL
    assert outcomes(report) == ["unknown", "restored", "restored", "restored"]
    assert report.replicas[0].active is None
    assert has(replicas[1:]) == {(OLD, 5)}


async def test_commits_that_wait_end_when_another_has_failed() -> None:
    replicas = fleet(2)
    replicas[0].on_commit, replicas[1].on_commit = hang, refuse
    report = await switch_fleet(replicas, replace(ORDER, mode="drain", timeout_s=3600))
    assert report.outcome == FleetOutcome.ROLLED_BACK
    assert replicas[0].calls == ["prepare", "commit", "rollback"]


async def test_a_replica_that_hangs_is_given_up_after_its_time() -> None:
    replicas = fleet(2)
    replicas[0].on_prepare = hang
    report = await switch_fleet(replicas, ORDER, call_s=0.01)
    assert report.outcome == FleetOutcome.UNCHANGED
    assert report.error == "r0: no answer within 0.01 s"
    assert not replicas[1].reserved


async def test_a_drain_has_its_own_time_on_top() -> None:
    replicas = fleet(1)
    replicas[0].on_commit = lambda: asyncio.sleep(0.05)
    drain = replace(ORDER, mode="drain", timeout_s=60.0)
    assert (await switch_fleet(replicas, drain, call_s=0.02)).outcome == FleetOutcome.SWITCHED
    assert (await switch_fleet(replicas, ORDER, call_s=0.02)).outcome != FleetOutcome.SWITCHED


async def test_a_name_that_replicas_understand_differently_is_refused() -> None:
    replicas = [ScriptedReplica("a"), ScriptedReplica("b", to=SpecMethodBody("suffix", 8))]
    report = await switch_fleet(replicas, Order("primary"))
    assert report.outcome == FleetOutcome.UNCHANGED
    assert report.error is not None
    assert "ngram at a" in report.error
    assert "suffix at b" in report.error
    assert not any(one.reserved for one in replicas)


@pytest.mark.parametrize("phase", ["on_prepare", "on_commit"])
async def test_a_coordinator_that_is_cancelled_rolls_back(phase: str) -> None:
    replicas = fleet()
    setattr(replicas[3], phase, hang)
    running = asyncio.create_task(switch_fleet(replicas, ORDER))
    call = phase.removeprefix("on_")
    await eventually(lambda: all(call in one.calls for one in replicas))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(one.reserved for one in replicas)
    assert {one.method for one in replicas} == {OLD}


async def test_a_switch_that_is_interrupted_names_the_replicas_that_are_not_known_to_be_back() -> (
    None
):
    replicas = fleet()
    replicas[3].on_commit, replicas[1].on_rollback = hang, be_gone
    reports: list[FleetReport] = []
    running = asyncio.create_task(switch_fleet(replicas, ORDER, on_interrupt=reports.append))
    await eventually(lambda: all("commit" in one.calls for one in replicas))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (report,) = reports
    assert (report.outcome, report.error) == (FleetOutcome.PARTIAL, "interrupted")
    assert outcomes(report) == ["restored", "unknown", "restored", "restored"]


async def break_down() -> None:
    """Fails as no replica should."""
    raise ValueError("a defect")


@pytest.mark.parametrize("phase", ["on_prepare", "on_commit"])
async def test_a_call_that_fails_in_an_unknown_way_is_rolled_back_and_named(phase: str) -> None:
    replicas = fleet()
    setattr(replicas[1], phase, break_down)
    report = await switch_fleet(replicas, ORDER)
    assert report.outcome != FleetOutcome.SWITCHED
    assert report.error == "r1: ValueError: a defect"
    assert {one.method for one in replicas} == {OLD}
    assert not any(one.reserved for one in replicas)


async def test_a_coordinator_that_fails_by_itself_rolls_back() -> None:
    """Its own code fails between the two phases."""
    replicas = fleet()
    replicas[2].generation = "three"  # type: ignore[assignment]
    with pytest.raises(TypeError):
        await switch_fleet(replicas, ORDER)
    assert not any(one.reserved for one in replicas)


async def test_a_second_cancellation_does_not_stop_a_roll_back() -> None:
    replicas, gate = fleet(), asyncio.Event()
    replicas[3].on_commit = hang
    for one in replicas:
        one.on_rollback = lambda: _until(gate)
    running = asyncio.create_task(switch_fleet(replicas, ORDER))
    await eventually(lambda: all("commit" in one.calls for one in replicas))
    running.cancel()
    await eventually(lambda: all("rollback" in one.calls for one in replicas))
    running.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert {one.method for one in replicas} == {OLD}


async def test_a_replica_that_was_switched_by_itself_after_its_commit_is_named() -> None:
    replicas = fleet(2)

    async def switch_then_refuse() -> None:
        await eventually(lambda: replicas[0].applied is not None)
        replicas[0].applied, replicas[0].method = None, SpecMethodBody("suffix", 8)
        await refuse()

    replicas[1].on_commit = switch_then_refuse
    report = await switch_fleet(replicas, ORDER)
    assert report.outcome == FleetOutcome.PARTIAL
    assert outcomes(report) == ["unknown", "refused"]
    assert report.replicas[0].error == "was switched to suffix meanwhile, and keeps it"


async def test_a_replica_whose_policy_was_changed_after_its_commit_is_named() -> None:
    replicas = fleet(2)
    replicas[0].kept = ("load", "goodput")
    replicas[1].on_commit = refuse
    report = await switch_fleet(replicas, ORDER)
    assert report.outcome == FleetOutcome.PARTIAL
    assert outcomes(report) == ["unknown", "refused"]
    assert report.unknown == ("r0",)
    expected = "got other parameters of load, goodput meanwhile, and keeps them"
    assert report.replicas[0].error == expected


async def test_a_skipped_replica_whose_answer_was_lost_is_released() -> None:
    """It would refuse the next switch until the end of its lease."""
    replicas = fleet(2)

    async def be_reserved_and_gone() -> None:
        replicas[1].reserved = "the switch"
        await be_gone()

    replicas[1].on_prepare = be_reserved_and_gone
    report = await switch_fleet(replicas, ORDER, skip_unreachable=True)
    assert outcomes(report) == ["switched", "unknown"]
    assert replicas[1].reserved is None
    assert has(replicas) == {(NEW, 1), (OLD, 1)}


async def test_a_replica_that_cannot_be_switched_back_is_named() -> None:
    replicas = fleet(2)
    gate = asyncio.Event()

    async def refuse_late() -> None:
        await gate.wait()
        await refuse()

    replicas[0].on_rollback, replicas[1].on_commit = refuse, refuse_late
    running = asyncio.create_task(switch_fleet(replicas, ORDER))
    await eventually(lambda: replicas[0].method == NEW)
    gate.set()
    report = await running
    assert report.outcome == FleetOutcome.PARTIAL
    assert report.replicas[0].outcome == ReplicaOutcome.UNKNOWN
    assert report.replicas[0].code == "some_code"


async def _until(gate: asyncio.Event | None) -> None:
    if gate is not None:
        await gate.wait()
