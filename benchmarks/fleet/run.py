"""How a fleet switch grows with the number of replicas.

The replicas are real servers with the fake engine on ports of this machine, several in a process.
Coordinator and replicas share its cores, so with many replicas the times are those of the
replicas' work too: they are an upper limit.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from server.fleet.addresses import Address
from server.fleet.coordinator import FleetOutcome, switch_fleet
from server.fleet.http_fleet import HttpFleet, PoolPerReplica, fleet_client
from server.fleet.replica import FleetSwitch

METHODS = ("ngram", "suffix")

TABLE_HEAD = (
    "| replicas | check ms | set ms | switch ms, median | slowest | coordinator's CPU ms |",
    "|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class FleetCost:
    """The switches of one size of fleet.

    Attributes:
        check_ms, set_ms, took_ms: of each switch.
        cpu_ms: CPU time of the coordinator in each switch.
        processes: that all replicas ran in.
        memory_mb: resident memory of all these processes.
    """

    replicas: int
    check_ms: Sequence[float]
    set_ms: Sequence[float]
    took_ms: Sequence[float]
    cpu_ms: Sequence[float]
    processes: int
    memory_mb: float


@dataclass(frozen=True, slots=True)
class ReplicaTraffic:
    """What one replica answers.

    Attributes:
        series, metrics_bytes: of `/metrics`.
        spec_method_bytes: of `GET /v1/spec_method`, which status and peers ask for.
    """

    series: int
    metrics_bytes: int
    spec_method_bytes: int


@asynccontextmanager
async def replicas(number: int, per_process: int) -> AsyncIterator[tuple[list[str], list[int]]]:
    """Starts replicas. Yields their URLs and the ids of their processes."""
    sizes = [min(per_process, number - start) for start in range(0, number, per_process)]
    processes = [_start(size) for size in sizes]
    try:
        lines = [await asyncio.to_thread(_read_line, process) for process in processes]
        urls = [url for line in lines for url in json.loads(line)]
        yield urls, [process.pid for process in processes]
    finally:
        for process in processes:
            # They hold nothing that a stop would have to save.
            process.kill()
            process.communicate()


def _start(number: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "benchmarks.fleet.servers", str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _read_line(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the replicas could not start; their output has the reason")
    return line


async def measure(
    numbers: Sequence[int], rounds: int, per_process: int
) -> AsyncIterator[FleetCost]:
    """Switches fleets of so many replicas so many times, after one switch that is not counted."""
    async with replicas(max(numbers), per_process) as (urls, pids):
        memory_mb = sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20
        for number in numbers:
            yield await _measure(urls[:number], rounds, len(pids), memory_mb)


async def _measure(urls: Sequence[str], rounds: int, processes: int, memory_mb: float) -> FleetCost:
    check, took, cpu = [], [], []
    async with fleet_client(None, PoolPerReplica()) as client:
        fleet = HttpFleet(client, [Address(url) for url in urls])
        for i in range(rounds + 1):
            start_s = time.process_time()
            report = await switch_fleet(fleet, FleetSwitch(METHODS[i % 2]))
            if report.outcome != FleetOutcome.SWITCHED:
                raise RuntimeError(f"a switch ended as {report.outcome}: {report.obstacle}")
            if i:
                cpu.append((time.process_time() - start_s) * 1e3)
                check.append(report.check_ms)
                took.append(report.took_ms)
    set_ms = [took_ms - check_ms for took_ms, check_ms in zip(took, check, strict=True)]
    return FleetCost(len(urls), check, set_ms, took, cpu, processes, memory_mb)


async def traffic() -> ReplicaTraffic:
    """What one replica answers after 100 switches: the most records that it remembers."""
    async with replicas(1, 1) as (urls, _), fleet_client(None) as client:
        fleet = HttpFleet(client, [Address(urls[0])])
        for i in range(100):
            await switch_fleet(fleet, FleetSwitch(METHODS[i % 2]))
        scraped, answer = await asyncio.gather(
            client.get(f"{urls[0]}/metrics"), client.get(f"{urls[0]}/v1/spec_method")
        )
        return ReplicaTraffic(_series(scraped), len(scraped.content), len(answer.content))


def _series(scraped: httpx.Response) -> int:
    families = text_string_to_metric_families(scraped.text)
    return sum(len(family.samples) for family in families)


def table_row(cost: FleetCost) -> str:
    """A line of the table."""
    figures = (
        *(statistics.median(times) for times in (cost.check_ms, cost.set_ms, cost.took_ms)),
        max(cost.took_ms),
        statistics.median(cost.cpu_ms),
    )
    cells = [str(cost.replicas), *(f"{figure:.1f}" for figure in figures)]
    return f"| {' | '.join(cells)} |"


def growth(costs: Sequence[FleetCost]) -> str:
    """The time that each replica adds, from the two largest fleets."""
    smaller, larger = list(islice(sorted(costs, key=lambda c: -c.replicas), 2))[::-1]
    times = [statistics.median(cost.took_ms) for cost in (smaller, larger)]
    slope = (times[1] - times[0]) / (larger.replicas - smaller.replicas)
    return (
        f"Each replica adds {slope:.2f} ms between {smaller.replicas} and {larger.replicas}. "
        f"All replicas together take {larger.memory_mb:.0f} MB in {larger.processes} processes."
    )
