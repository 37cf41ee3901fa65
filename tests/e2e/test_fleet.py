"""A fleet of processes: one is killed, another command switches, and it comes back."""

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from server.fleet.addresses import Address
from server.fleet.coordinator import FleetOutcome, switch_fleet
from server.fleet.http_fleet import HttpFleet, SpecMethodAnswer, fleet_client
from server.fleet.replica import FleetSwitch
from tests.e2e.served import ROOT, Served, environment
from tests.server.fleet.patience import be_patient
from tests.server.gateway import eventually
from tests.server.threaded import ThreadedServer

pytestmark = [pytest.mark.engine, pytest.mark.prove]

FLAGS = ("--engine", "fake", "--spec-method", "none", "--fleet-poll-s", "0.1")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas may take minutes to be reached."""
    be_patient(monkeypatch)


@pytest.fixture
def threads() -> Iterator[list[ThreadedServer]]:
    servers = [ThreadedServer(spec_method="none").start() for _ in range(3)]
    yield servers
    for server in servers:
        server.stop()


def has(servers: Sequence[ThreadedServer]) -> set[tuple[str, int]]:
    states = [server.runtime.fleet.state() for server in servers]
    return {(state.active.spec_method, state.fleet.generation) for state in states}


def peers(servers: Sequence[ThreadedServer]) -> list[str]:
    return [word for server in servers for word in ("--fleet-peers", server.url)]


async def until_it_has(fleet: HttpFleet, method: str, generation: int) -> None:
    """Waits until the one replica of a fleet has this; it asks its peers again and again."""
    while True:
        (shown,) = (await fleet.spec_methods(300)).values()
        assert isinstance(shown, SpecMethodAnswer), shown
        if (shown.spec_method, shown.fleet.generation) == (method, generation):
            return
        await asyncio.sleep(0.1)


async def test_a_process_that_is_killed_misses_a_switch_and_takes_it_when_it_is_back(
    threads: list[ThreadedServer], tmp_path: Path
) -> None:
    served = Served.start_beside(tmp_path / "first.log", *FLAGS, *peers(threads))
    async with fleet_client(None) as client:
        urls = [*(server.url for server in threads), served.url]
        fleet = HttpFleet(client, map(Address, urls))
        assert (await switch_fleet(fleet, FleetSwitch("suffix"))).outcome == FleetOutcome.SWITCHED
        served.process.kill()
        await asyncio.to_thread(served.process.wait)
        report = await switch_fleet(fleet, FleetSwitch("ngram"))
        assert report.outcome == FleetOutcome.PARTIAL
        outcomes = [str(replica.outcome) for replica in report.replicas]
        assert outcomes == ["switched", "switched", "switched", "unknown"]
        again = await asyncio.to_thread(
            Served.start_beside, tmp_path / "again.log", *FLAGS, *peers(threads)
        )
        try:
            back = HttpFleet(client, [Address(again.url)])
            # Peers that were too slow at its start are asked again.
            await until_it_has(back, "ngram", 2)
            # A switch that it is not told.
            others = HttpFleet(client, map(Address, urls[:3]))
            assert (
                await switch_fleet(others, FleetSwitch("none"))
            ).outcome == FleetOutcome.SWITCHED
            await until_it_has(back, "none", 3)
        finally:
            again.stop()


async def test_a_command_that_is_killed_after_one_answer_leaves_no_server_behind(
    threads: list[ThreadedServer], tmp_path: Path
) -> None:
    """It has told one server only: the others learn of it from that one."""
    served = Served.start_beside(tmp_path / "served.log", *FLAGS, *peers(threads[:1]))
    try:
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "server.cli", "switch", "ngram", "--all"),
            *("--url", threads[0].url),
            cwd=ROOT,
            env=environment(),
        )
        await eventually(lambda: has(threads[:1]) == {("ngram", 1)})
        if command.returncode is None:
            command.send_signal(signal.SIGKILL)
        await command.wait()
        async with fleet_client(None) as client:
            alone = HttpFleet(client, [Address(served.url)])
            await until_it_has(alone, "ngram", 1)
    finally:
        served.stop()
