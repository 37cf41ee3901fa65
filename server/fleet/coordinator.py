"""A switch of a whole fleet: checked at all replicas, set at all, and a report of who lags."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from server.control.records import SpecMethodBody, SwitchResult
from server.fleet.desired import DesiredState, next_state, rank_of
from server.fleet.replica import Checked, Fleet, FleetSwitch, Obstacle, ReplicaState


class ReplicaOutcome(StrEnum):
    """What a fleet switch did to one replica.

    `switched`: it has the state. `lags`: it should have it, and tries again. `superseded`: it knows
    a larger state, of another switch. `unknown`: it does not answer; its peers tell it the state.
    `unchanged`: nothing was set anywhere.
    """

    SWITCHED = "switched"
    LAGS = "lags"
    SUPERSEDED = "superseded"
    UNKNOWN = "unknown"
    UNCHANGED = "unchanged"


class FleetOutcome(StrEnum):
    """The end of a fleet switch.

    `switched`: every replica has the state. `partial`: some have it, or will. `unchanged`: it was
    set nowhere.
    """

    SWITCHED = "switched"
    PARTIAL = "partial"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica after a fleet switch.

    Attributes:
        previous, active, fleet_generation: before and after; `None` if not known.
        switch: the one that it has made.
        obstacle: why it has not switched.
    """

    replica: str
    outcome: ReplicaOutcome
    previous: SpecMethodBody | None = None
    active: SpecMethodBody | None = None
    fleet_generation: int | None = None
    switch: SwitchResult | None = None
    obstacle: Obstacle | None = None


@dataclass(frozen=True, slots=True)
class FleetReport:
    """A fleet switch that has ended.

    Attributes:
        desired: the state that was set; `None` if none was.
        obstacle: why none was.
        check_ms, took_ms: until all were checked, and all.
    """

    outcome: FleetOutcome
    desired: DesiredState | None
    obstacle: Obstacle | None
    replicas: tuple[ReplicaReport, ...]
    check_ms: float
    took_ms: float

    def named(self, *outcomes: ReplicaOutcome) -> list[ReplicaReport]:
        """The replicas with one of these outcomes."""
        return [report for report in self.replicas if report.outcome in outcomes]


async def switch_fleet(fleet: Fleet, fleet_switch: FleetSwitch) -> FleetReport:
    """Sets a state at all replicas, if one of them can have it and none means another method.

    A replica that refuses, or does not answer, keeps no other back. If the caller is cancelled, the
    replicas that were told have the state, or will.
    """
    start_s = time.perf_counter()
    checks = await fleet.check(fleet_switch)
    check_ms = _ms_since(start_s)
    answers = [answer for answer in checks.values() if isinstance(answer, Checked)]
    if (refusal := _refusal(checks)) is not None:
        replicas = tuple(_unchanged(name, answer) for name, answer in checks.items())
        return FleetReport(FleetOutcome.UNCHANGED, None, refusal, replicas, check_ms, check_ms)
    base = max((answer.fleet.desired for answer in answers), key=rank_of)
    target = next(answer.to for answer in answers if isinstance(answer.to, SpecMethodBody))
    desired = next_state(base, target, fleet_switch.policies or {})
    states = await fleet.set(desired, fleet_switch.way)
    # A replica that was checked and is gone has left the fleet.
    replicas = tuple(_report(name, checks.get(name), states[name], desired) for name in states)
    is_whole = {report.outcome for report in replicas} == {ReplicaOutcome.SWITCHED}
    outcome = FleetOutcome.SWITCHED if is_whole else FleetOutcome.PARTIAL
    return FleetReport(outcome, desired, None, replicas, check_ms, _ms_since(start_s))


def _refusal(checks: Mapping[str, Checked | Obstacle]) -> Obstacle | None:
    """Why nothing is set: no replica can have the method, or they mean different ones."""
    targets: dict[SpecMethodBody, str] = {}
    obstacles = []
    for name, answer in checks.items():
        match _target(answer):
            case SpecMethodBody() as target:
                targets[target] = (
                    f"{target.spec_method} with k {target.num_speculative_tokens} at {name}"
                )
            case Obstacle() as obstacle:
                obstacles.append(replace(obstacle, message=f"{name}: {obstacle.message}"))
    if len(targets) > 1:
        descriptions = ", ".join(targets.values())
        return Obstacle(f"the replicas mean different methods by this name: {descriptions}", 400)
    if targets:
        return None
    # One that refuses says more than one that does not answer.
    return min(
        obstacles,
        key=lambda obstacle: obstacle.status,
        default=Obstacle("the fleet has no replicas"),
    )


def _target(answer: Checked | Obstacle) -> SpecMethodBody | Obstacle:
    """What a replica would have, or why it would not."""
    return answer.to if isinstance(answer, Checked) else answer


def _unchanged(name: str, answer: Checked | Obstacle) -> ReplicaReport:
    """The report of a replica, if nothing was set."""
    target, outcome = _target(answer), ReplicaOutcome.UNCHANGED
    obstacle = target if isinstance(target, Obstacle) else None
    if isinstance(answer, Obstacle):
        return ReplicaReport(name, outcome, obstacle=obstacle)
    active, number = answer.active, answer.fleet.generation
    return ReplicaReport(name, outcome, active, active, number, None, obstacle)


def _report(
    name: str,
    check_answer: Checked | Obstacle | None,
    set_answer: ReplicaState | Obstacle,
    desired: DesiredState,
) -> ReplicaReport:
    """The report of a replica that was told a state."""
    previous = check_answer.active if isinstance(check_answer, Checked) else None
    if isinstance(set_answer, Obstacle):
        return ReplicaReport(name, ReplicaOutcome.UNKNOWN, previous, obstacle=set_answer)
    outcome, obstacle = ReplicaOutcome.SWITCHED, set_answer.fleet.lag
    if rank_of(set_answer.fleet.desired) != desired.rank:
        outcome = ReplicaOutcome.SUPERSEDED
        obstacle = Obstacle("another switch of the fleet came meanwhile", 409, "switch_in_progress")
    elif obstacle is not None:
        outcome = ReplicaOutcome.LAGS
    if set_answer.switch is not None:
        previous = set_answer.switch.previous
    number = set_answer.fleet.generation
    return ReplicaReport(
        name, outcome, previous, set_answer.active, number, set_answer.switch, obstacle
    )


def _ms_since(start_s: float) -> float:
    return round((time.perf_counter() - start_s) * 1e3, 3)
