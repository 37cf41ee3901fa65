"""Fifty replicas agree in the end, whatever is lost, restarts, or happens at the same time."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable

import pytest

from server.fleet import member
from server.fleet.coordinator import FleetOutcome, switch_fleet
from server.fleet.desired import DesiredState, rank_of
from server.fleet.replica import FleetSwitch, Way
from tests.server.fleet.network import ALL, Network
from tests.server.gateway import eventually

NUMBER = 50
ROUNDS = 30
"""Questions of every replica to one other after which all know a state. Ten to fifteen are usual:
log2(50) until half know it, and a third of the questions are lost."""

METHODS = ("ngram", "suffix", "draft", "none", "auto")

StartNetwork = Callable[[int], Network]


@pytest.fixture
async def start_network(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StartNetwork]:
    monkeypatch.setattr(member, "RETRY_S", 0.002)
    monkeypatch.setattr(member, "MAX_RETRY_S", 0.02)
    made: list[Network] = []

    def start(seed: int) -> Network:
        random.seed(seed)
        made.append(Network(NUMBER, seed))
        return made[-1]

    yield start
    for network in made:
        await network.close()


async def gossip(network: Network) -> None:
    """Every replica asks one other."""
    await asyncio.gather(*(each.follower.learn(1) for each in network.replicas.values()))


def desired(network: Network) -> list[DesiredState | None]:
    return [each.member.desired for each in network.replicas.values()]


def has(network: Network) -> set[tuple[str, int, bool]]:
    """What the replicas have: method, generation, and whether the policies are in force."""
    found = set()
    for replica in network.replicas.values():
        state, status = replica.switcher.active, replica.member.status()
        policies = {} if status.desired is None else status.desired.policies
        in_force = not replica.admin._not_in_force(policies)
        found.add((state.name, state.fleet.generation, in_force))
    return found


async def random_switch(network: Network) -> None:
    rng = network.rng
    fleet_switch = FleetSwitch(
        rng.choice(METHODS),
        policies=rng.choice([None, {"auto": {"min_gain": round(rng.random(), 2)}}]),
        way=Way(rng.choice(["immediate", "new_requests", "drain"]), 5),
    )
    await switch_fleet(network.fleet, fleet_switch)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(1, 12))]
)
async def test_all_agree_after_two_coordinators_restarts_losses_and_a_clock_that_jumps(
    start_network: StartNetwork, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, true_time = start_network(seed), time.time
    rng, network.loss = network.rng, 0.2
    for _ in range(4):
        jump = rng.choice([-3600.0, 3600.0])
        monkeypatch.setattr(time, "time", lambda jump=jump: true_time() + jump)
        for replica in network.some(10):
            replica.is_down = rng.random() < 0.5
            replica.engine.fault_rate = rng.choice([0.0, 0.3])
            replica.proposers = ALL[rng.randrange(2) :]
        restarts = (replica.restart() for replica in network.some(5))
        await asyncio.gather(random_switch(network), random_switch(network), *restarts)
    for replica in network.replicas.values():
        replica.is_down, replica.proposers, replica.engine.fault_rate = False, ALL, 0.0
    largest = max(desired(network), key=rank_of)
    assert largest is not None
    rounds = 0
    while set(map(rank_of, desired(network))) != {largest.rank}:
        assert rounds < ROUNDS
        rounds += 1
        await gossip(network)
    expected = {(largest.spec_method, largest.generation, True)}
    await eventually(lambda: has(network) == expected)
    assert all(each.member.status().lag is None for each in network.replicas.values())


async def test_a_state_that_reached_one_replica_reaches_all(start_network: StartNetwork) -> None:
    network = start_network(7)
    (first,) = network.some(1)
    await first.member.set(DesiredState(1, "ngram", 5))
    network.loss = 0.2
    rounds = 0
    while has(network) != {("ngram", 1, True)}:
        assert rounds < ROUNDS
        rounds += 1
        await gossip(network)
    assert rounds > 1


async def test_replicas_that_are_down_miss_a_switch_and_take_it_when_they_start(
    start_network: StartNetwork,
) -> None:
    network = start_network(8)
    away = network.some(5)
    for replica in away:
        replica.is_down = True
    report = await switch_fleet(network.fleet, FleetSwitch("suffix"))
    assert report.outcome == FleetOutcome.PARTIAL
    assert {each.replica for each in report.replicas if each.outcome == "unknown"} == {
        replica.url for replica in away
    }
    for replica in away:
        replica.is_down = False
    await asyncio.gather(*(replica.restart() for replica in away))
    assert has(network) == {("suffix", 1, True)}


async def test_of_two_coordinators_at_a_time_one_wins_everywhere(
    start_network: StartNetwork,
) -> None:
    """Without a question to a peer: every replica was told both states, of the same number."""
    network = start_network(9)
    fleet_switches = (
        FleetSwitch("ngram"),
        FleetSwitch("suffix", policies={"auto": {"min_gain": 0.5}}),
    )
    for generation in range(1, 6):
        reports = await asyncio.gather(
            *(switch_fleet(network.fleet, fleet_switch) for fleet_switch in fleet_switches)
        )
        states = [report.desired for report in reports]
        assert [state and state.generation for state in states] == [generation] * 2
        assert desired(network) == [max(states, key=rank_of)] * NUMBER
        await eventually(lambda: len(has(network)) == 1)
        ((_, number, in_force),) = has(network)
        assert (number, in_force) == (generation, True)
