"""A switch of a fleet: who refuses it, who keeps it back, and what the report says of each."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from server.control.records import SpecMethodBody, SwitchResult
from server.control.types import SwitchMode
from server.fleet.coordinator import FleetOutcome, FleetReport, ReplicaOutcome, switch_fleet
from server.fleet.desired import DesiredState, rank_of
from server.fleet.replica import (
    Checked,
    FleetStatus,
    FleetSwitch,
    Obstacle,
    ReplicaState,
    Way,
)

OLD, NEW = SpecMethodBody("draft", 4), SpecMethodBody("ngram", 5)
LOAD = {"load": {"disable_by_batch_size": 3}}
GONE = Obstacle("cannot be reached")
NONE = Obstacle("no such proposer", 404, "proposer_not_found")
FLEET_SWITCH = FleetSwitch("ngram", policies=LOAD)


class Replica:
    """A replica that does what a test says."""

    def __init__(self, generation: int = 0, to: SpecMethodBody | Obstacle = NEW) -> None:
        self.desired = DesiredState(generation, "draft", 4) if generation else None
        self.to = to
        self.checks: Callable[[], Obstacle | None] = lambda: None
        self.failure: Obstacle | None = None
        self.lag: Obstacle | None = None
        self.told: list[tuple[DesiredState, Way]] = []

    def status(self) -> FleetStatus:
        has = 0 if self.desired is None or self.lag else self.desired.generation
        return FleetStatus(has, False, self.desired, self.lag)

    def check(self, fleet_switch: FleetSwitch) -> Checked | Obstacle:
        return self.checks() or Checked(OLD, self.to, self.status())

    def set(self, desired: DesiredState, way: Way) -> ReplicaState | Obstacle:
        self.told.append((desired, way))
        if self.failure is not None:
            return self.failure
        if desired.rank < rank_of(self.desired):
            return ReplicaState(OLD, None, self.status())
        self.desired = desired
        if self.lag is not None:
            return ReplicaState(OLD, None, self.status())
        switch = SwitchResult(
            OLD, NEW, SwitchMode.IMMEDIATE, 1, desired.generation, 3, 1, waited_ms=0.5
        )
        return ReplicaState(NEW, switch, self.status())


class Scripted:
    """`replica.Fleet` over such replicas: a, b, c."""

    def __init__(self, *replicas: Replica) -> None:
        self.replicas = dict(zip("abcdef", replicas, strict=False))

    async def check(self, fleet_switch: FleetSwitch) -> Mapping[str, Checked | Obstacle]:
        return {name: replica.check(fleet_switch) for name, replica in self.replicas.items()}

    async def set(self, desired: DesiredState, way: Way) -> Mapping[str, ReplicaState | Obstacle]:
        return {name: replica.set(desired, way) for name, replica in self.replicas.items()}


async def switch(*replicas: Replica, fleet_switch: FleetSwitch = FLEET_SWITCH) -> FleetReport:
    return await switch_fleet(Scripted(*replicas), fleet_switch)


def outcomes(report: FleetReport) -> list[str]:
    return [str(each.outcome) for each in report.replicas]


async def test_all_get_a_state_above_the_largest_that_one_knows() -> None:
    replicas = [Replica(3), Replica(), Replica(8)]
    way = Way("drain", 5)
    report = await switch(*replicas, fleet_switch=replace(FLEET_SWITCH, way=way))
    assert report.outcome == FleetOutcome.SWITCHED
    assert report.obstacle is None
    assert report.desired == DesiredState(9, "ngram", 5, LOAD)
    assert [replica.told for replica in replicas] == [[(report.desired, way)]] * 3
    (first, *_) = report.replicas
    assert (first.replica, first.outcome) == ("a", ReplicaOutcome.SWITCHED)
    assert (first.previous, first.active, first.fleet_generation) == (OLD, NEW, 9)
    assert first.switch is not None
    assert (first.switch.in_flight, first.switch.aborted, first.switch.waited_ms) == (3, 1, 0.5)
    assert 0 <= report.check_ms <= report.took_ms


async def test_the_policies_of_earlier_switches_stay() -> None:
    replica = Replica(2)
    replica.desired = DesiredState(2, "draft", 4, {"auto": {"min_gain": 0.5}} | LOAD, 7)
    fleet_switch = FleetSwitch("ngram", policies={"load": {}})
    desired = (await switch(replica, Replica(1), fleet_switch=fleet_switch)).desired
    assert desired == DesiredState(3, "ngram", 5, {"auto": {"min_gain": 0.5}, "load": {}}, 7)


async def test_a_replica_that_does_not_answer_keeps_no_other_back() -> None:
    gone = Replica()
    gone.checks, gone.failure = lambda: GONE, GONE
    report = await switch(Replica(), gone, Replica())
    assert report.outcome == FleetOutcome.PARTIAL
    assert outcomes(report) == ["switched", "unknown", "switched"]
    assert report.replicas[1].obstacle == GONE
    assert len(gone.told) == 1, "its answer may be what was lost"


async def test_a_replica_whose_check_was_lost_is_told_too() -> None:
    late = Replica()
    late.checks = lambda: GONE
    assert (await switch(Replica(), late)).outcome == FleetOutcome.SWITCHED


async def test_a_replica_whose_answer_is_lost_is_not_known() -> None:
    lost = Replica()
    lost.failure = Obstacle("no answer within 10 s")
    report = await switch(Replica(), lost)
    assert outcomes(report) == ["switched", "unknown"]
    assert (report.replicas[1].previous, report.replicas[1].active) == (OLD, None)


async def test_a_replica_that_can_never_have_the_method_keeps_no_other_back() -> None:
    """And the number is above the one that it knows, so that it undoes nothing later."""
    refusing = Replica(7, to=NONE)
    refusing.lag = NONE
    report = await switch(Replica(2), refusing)
    assert (report.outcome, outcomes(report)) == (FleetOutcome.PARTIAL, ["switched", "lags"])
    assert report.desired is not None
    assert report.desired.generation == 8
    assert report.replicas[1].obstacle == NONE


async def test_a_method_that_no_replica_can_have_changes_nothing() -> None:
    gone, replicas = Replica(), [Replica(2, to=NONE), Replica(to=NONE)]
    gone.checks = lambda: GONE
    report = await switch(gone, *replicas)
    assert (report.outcome, report.desired) == (FleetOutcome.UNCHANGED, None)
    assert report.obstacle == Obstacle("b: no such proposer", 404, "proposer_not_found")
    assert outcomes(report) == ["unchanged"] * 3
    assert [replica.obstacle for replica in report.replicas] == [GONE, NONE, NONE]
    assert (report.replicas[1].active, report.replicas[1].fleet_generation) == (OLD, 2)
    assert [replica.told for replica in (gone, *replicas)] == [[], [], []]


@pytest.mark.parametrize(
    "failure", [Obstacle("it loads", 503, "engine_not_ready"), Obstacle("Wrong key", 401)]
)
async def test_a_replica_that_answers_no_call_keeps_no_other_back(failure: Obstacle) -> None:
    loading = Replica()
    loading.checks, loading.failure = lambda: failure, failure
    report = await switch(Replica(), loading)
    assert (report.outcome, outcomes(report)) == (FleetOutcome.PARTIAL, ["switched", "unknown"])
    assert report.replicas[1].obstacle == failure


async def test_a_replica_that_lags_says_why() -> None:
    late = Replica()
    late.lag = Obstacle("1 admitted request did not end within 5 s", 504, "drain_timeout")
    report = await switch(late, Replica())
    assert (report.outcome, outcomes(report)) == (FleetOutcome.PARTIAL, ["lags", "switched"])
    (first, _) = report.replicas
    assert (first.obstacle, first.switch) == (late.lag, None)
    assert (first.active, first.fleet_generation) == (OLD, 0)


async def test_a_replica_that_knows_a_larger_state_is_named() -> None:
    class Overtaken(Replica):
        """Another coordinator comes between the two calls."""

        def set(self, desired: DesiredState, way: Way) -> ReplicaState | Obstacle:
            self.desired = replace(desired, generation=desired.generation + 1)
            return super().set(desired, way)

    report = await switch(Replica(), Overtaken())
    assert (report.outcome, outcomes(report)) == (FleetOutcome.PARTIAL, ["switched", "superseded"])
    assert report.named(ReplicaOutcome.SUPERSEDED) == [report.replicas[1]]


async def test_no_replica_that_answers_changes_nothing() -> None:
    gone = Replica()
    gone.checks = lambda: GONE
    report = await switch(gone, gone)
    assert report.outcome == FleetOutcome.UNCHANGED
    assert report.obstacle == Obstacle("a: cannot be reached")
    assert gone.told == []


async def test_replicas_that_mean_different_methods_change_nothing() -> None:
    other = Replica(to=SpecMethodBody("suffix", 5))
    report = await switch(Replica(), other, fleet_switch=FleetSwitch("primary"))
    assert report.outcome == FleetOutcome.UNCHANGED
    assert report.obstacle is not None
    assert report.obstacle.message.endswith("ngram with k 5 at a, suffix with k 5 at b")
    assert other.told == []


async def test_a_report_is_json() -> None:
    report: dict[str, Any] = asdict(await switch(Replica(), Replica()))
    assert report["desired"]["spec_method"] == "ngram"
    assert report["replicas"][0]["outcome"] == "switched"
