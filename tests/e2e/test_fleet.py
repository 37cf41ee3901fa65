"""A fleet of processes, of which one is killed in mid-switch, and a coordinator that is killed."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from server.control.records import SwitchResult
from server.fleet.addresses import Address
from server.fleet.coordinator import switch_fleet
from server.fleet.http_replica import HttpReplica, fleet_client, http_replicas
from server.fleet.replica import FleetOutcome, Order, ReplicaOutcome
from tests.e2e.served import ROOT, Served, environment
from tests.server.fleet.patience import be_patient
from tests.server.gateway import eventually
from tests.server.threaded import ThreadedServer

pytestmark = [pytest.mark.engine, pytest.mark.prove]

COORDINATOR = """
import asyncio, sys
from server.fleet.addresses import Address
from server.fleet.coordinator import switch_fleet
from server.fleet.http_replica import HttpReplica, fleet_client
from server.fleet.replica import Order

class Waits(HttpReplica):
    async def commit(self, switch_id, generation):
        print("prepared", flush=True)
        await asyncio.Event().wait()

async def main():
    async with fleet_client(None) as client:
        fleet = [Waits(client, Address(url)) for url in sys.argv[1:]]
        await switch_fleet(fleet, Order("suffix"), lease_s=3, call_s=300)

asyncio.run(main())
"""
"""Prepares a switch at the URLs of its arguments, says so, and never commits."""


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
    return {(state.active.spec_method, state.fleet_generation) for state in states}


class Killed(HttpReplica):
    """A replica whose process is killed when it is told to commit."""

    def __init__(self, client: httpx.AsyncClient, served: Served) -> None:
        super().__init__(client, Address(served.url))
        self._served = served

    async def commit(self, switch_id: str, generation: int) -> SwitchResult:
        self._served.process.kill()
        await asyncio.to_thread(self._served.process.wait)
        return await super().commit(switch_id, generation)


async def test_a_process_that_is_killed_in_mid_switch_comes_back_with_the_fleets_method(
    threads: list[ThreadedServer], tmp_path: Path
) -> None:
    flags = ("--engine", "fake", "--spec-method", "none")
    peers = [word for server in threads for word in ("--fleet-peers", server.url)]
    served = Served.start_beside(tmp_path / "first.log", *flags)
    async with fleet_client(None) as client:
        others = http_replicas(client, [Address(server.url) for server in threads])
        report = await switch_fleet([*others, Killed(client, served)], Order("ngram"))
        assert report.outcome == FleetOutcome.PARTIAL
        assert report.replicas[3].outcome == ReplicaOutcome.UNKNOWN
        assert has(threads) == {("none", 2)}
        again = await asyncio.to_thread(Served.start_beside, tmp_path / "again.log", *flags, *peers)
        try:
            (back,) = http_replicas(client, [Address(again.url)])
            # Peers that were too slow at its start are asked again.
            while (await back.state()).fleet_generation != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            whole = await switch_fleet([*others, back], Order("ngram"))
            assert whole.outcome == FleetOutcome.SWITCHED
            assert (await back.state()).active.spec_method == "ngram"
            assert has(threads) == {("ngram", 3)}
        finally:
            again.stop()


async def test_a_coordinator_that_is_killed_between_the_phases_blocks_no_server(
    threads: list[ThreadedServer],
) -> None:
    urls = [server.url for server in threads]
    with _coordinator(urls) as coordinator:
        assert coordinator.stdout is not None
        assert await asyncio.to_thread(coordinator.stdout.readline) == b"prepared\n"
        coordinator.send_signal(signal.SIGKILL)
    assert has(threads) == {("none", 0)}
    await eventually(lambda: not any(s.runtime.fleet.state().is_switching for s in threads))
    async with fleet_client(None) as client:
        replicas = http_replicas(client, [Address(url) for url in urls])
        assert (await switch_fleet(replicas, Order("ngram"))).outcome == FleetOutcome.SWITCHED
    assert has(threads) == {("ngram", 1)}


def _coordinator(urls: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, *urls],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
    )
