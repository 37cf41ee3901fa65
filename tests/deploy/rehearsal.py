"""A rolling restart of two servers behind haproxy, under load.

By hand, with the demo's models on real engines and the log on the terminal:
`python -m tests.deploy.rehearsal`.
"""

import asyncio
import contextlib
import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.traffic import Report, Traffic
from tests.e2e.served import ROOT, Served

CONFIGURATION = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
SETTLE_S = 3
"""Seconds of load before, between and after the restarts."""
PRE_STOP_S = 2
"""Seconds between leaving the balancer and SIGTERM."""

Log = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How the rehearsal goes.

    Attributes:
        flags: of both servers, besides the port.
        leave_first: take a server out of the balancer before SIGTERM. If not, the balancer learns
            from refused connections.
        clients: that send at the same time.
        max_tokens: about the most of a request.
    """

    flags: tuple[str, ...]
    leave_first: bool
    clients: int = 16
    max_tokens: int = 100


class Balancer:
    """A running haproxy with the deployed configuration."""

    def __init__(self, servers: dict[str, str], folder: Path) -> None:
        self.url = f"http://{free_address()}"
        self._socket = folder / "haproxy.sock"
        variables = {
            "FRONTEND": self.url.removeprefix("http://"),
            "ADMIN_SOCKET": str(self._socket),
            **{f"SERVER_{name.upper()}": address for name, address in servers.items()},
        }
        command = [haproxy() or "haproxy", "-db", "-f", str(CONFIGURATION)]
        with (folder / "haproxy.log").open("wb") as output:
            self._process = subprocess.Popen(
                command, env={**os.environ, **variables}, stdout=output, stderr=subprocess.STDOUT
            )

    def command(self, text: str) -> str:
        """Sends a command to haproxy's socket; returns its answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._socket))
            connection.sendall(text.encode() + b"\n")
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def figures(self) -> dict[str, dict[str, str]]:
        """The servers' rows of haproxy's statistics."""
        lines = self.command("show stat").lstrip("# ").splitlines()
        rows = [row for row in csv.DictReader(lines) if row["pxname"] == "specgate"]
        return {row["svname"]: row for row in rows}

    def stop(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.wait(10)


async def rehearse(plan: Plan, folder: Path, log: Log) -> Report:
    """Restarts one server after the other under load; returns what the clients saw."""
    addresses = {name: free_address() for name in ("one", "two")}
    begin = time.monotonic()

    def say(text: str) -> None:
        log(f"{time.monotonic() - begin:6.1f} s  {text}")

    with _servers(addresses, plan, folder) as servers, balancing(addresses, folder) as balancer:
        await _until_up(balancer, *addresses)
        say("both servers are up behind the balancer")
        traffic = Traffic(balancer.url, plan.clients, plan.max_tokens)
        sending = asyncio.create_task(traffic.run())
        await asyncio.sleep(SETTLE_S)
        for name in addresses:
            say(f"{traffic.report.answered} answers, {len(traffic.report.lost)} lost")
            if plan.leave_first:
                balancer.command(f"set server specgate/{name} state drain")
                say(f"{name}: out of the balancer")
                await asyncio.sleep(PRE_STOP_S)
            await _replace(name, servers, plan, folder, say)
            balancer.command(f"set server specgate/{name} state ready")
            await _until_up(balancer, name)
            say(f"{name}: new process serves")
            await asyncio.sleep(SETTLE_S)
        traffic.stop()
        report = await sending
        _summarize(report, balancer, say)
    return report


async def _replace(
    name: str, servers: dict[str, Served], plan: Plan, folder: Path, say: Log
) -> None:
    """Stops a server with SIGTERM and starts another process on its port."""
    old = servers[name]
    running = old.scrape()("vllm:num_requests_running")
    old.process.send_signal(signal.SIGTERM)
    say(f"{name}: SIGTERM, {running:.0f} requests run in it")
    stopped = time.monotonic()
    status = await asyncio.to_thread(old.process.wait, 60)
    say(f"{name}: ended with status {status} after {time.monotonic() - stopped:.1f} s")
    assert status == 0, old.tail()
    log = folder / f"{name}-again.log"
    servers[name] = await asyncio.to_thread(Served.start, old.url, log, *_flags(old.url, plan))


def _summarize(report: Report, balancer: Balancer, say: Log) -> None:
    rows = balancer.figures()
    seconds = sorted(report.seconds)
    say(
        f"{report.answered} answers ({report.streams} streams), {len(report.lost)} lost; "
        f"median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s"
    )
    for problem in report.lost:
        say(f"lost: {problem}")
    for name in ("one", "two"):
        row = rows[name]
        say(
            f"balancer, {name}: {row['stot']} sessions, "
            f"{row['wretr']} retries, {row['wredis']} sent to the other server"
        )


@contextmanager
def _servers(addresses: dict[str, str], plan: Plan, folder: Path) -> Iterator[dict[str, Served]]:
    """Both servers; those that are in the dictionary at the end are stopped."""
    servers: dict[str, Served] = {}
    try:
        for name, address in addresses.items():
            url = f"http://{address}"
            servers[name] = Served.start(url, folder / f"{name}.log", *_flags(url, plan))
        yield servers
    finally:
        for served in servers.values():
            if served.process.poll() is None:
                served.stop()


@contextmanager
def balancing(addresses: dict[str, str], folder: Path) -> Iterator[Balancer]:
    """A balancer of these servers while the block runs."""
    balancer = Balancer(addresses, folder)
    try:
        yield balancer
    finally:
        balancer.stop()


async def _until_up(balancer: Balancer, *names: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError):  # haproxy has no socket yet
            rows = balancer.figures()
            if all(rows[name]["status"] == "UP" for name in names):
                return
        assert time.monotonic() < deadline, f"haproxy does not see {names}"
        await asyncio.sleep(0.1)


def _flags(url: str, plan: Plan) -> tuple[str, ...]:
    return ("--port", url.rpartition(":")[2], "--no-access-log", *plan.flags)


def free_address() -> str:
    """An address of loopback that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def haproxy() -> str | None:
    """The path of haproxy, which Debian has in a folder of administrators."""
    return shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")


def main() -> int:
    """Rehearses with the demo's models; status 1 if a request is lost."""
    lost = 0
    for leave_first in (True, False):
        print(f"leave the balancer before SIGTERM: {leave_first}")
        plan = Plan((), leave_first)
        with tempfile.TemporaryDirectory() as folder:
            report = asyncio.run(rehearse(plan, Path(folder), print))
        lost += len(report.lost)
    return min(lost, 1)


if __name__ == "__main__":
    sys.exit(main())
