"""`specgate switch --all`: one switch of several servers, and a report of those that lag."""

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from server.commands import BAD_SETTING, DIFFERING, FAILED, INTERRUPTED, print_error
from server.commands.admin_client import method_text, printable
from server.control.records import SpecMethodBody
from server.control.types import DRAIN_TIMEOUT_S, OnTimeout, SwitchMode
from server.fleet.addresses import resolve
from server.fleet.coordinator import FleetOutcome, FleetReport, ReplicaOutcome, switch_fleet
from server.fleet.desired import DesiredState, state_json
from server.fleet.http_fleet import HttpFleet, PoolPerReplica, fleet_client
from server.fleet.replica import FleetSwitch, Way
from server.http.descriptors import raise_limit

FLEET_ONLY = ("json", "policies", "write_state")
"""The options that only `--all` has."""

_EXIT = {
    FleetOutcome.SWITCHED: 0,
    FleetOutcome.PARTIAL: DIFFERING,
    FleetOutcome.UNCHANGED: FAILED,
}
_WIDTH = 200


def add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `FLEET_ONLY`."""
    parser.add_argument(
        "--policies",
        type=_policies,
        metavar="JSON",
        help="with --all: policy -> its parameters, set with the method",
    )
    parser.add_argument(
        "--write-state",
        metavar="FILE",
        help="with --all: write the method in force, for --fleet-state of replicas that start",
    )
    parser.add_argument(
        "--json", action="store_true", help="with --all: print the report as one JSON object"
    )


def switch_all(options: argparse.Namespace, urls: Sequence[str]) -> int:
    """Switches every replica and prints the report. Returns the exit status."""
    if options.on_timeout is not None and options.mode != SwitchMode.DRAIN:
        print_error(f"--on-timeout needs --mode drain; the mode is {options.mode}")
        return BAD_SETTING
    # A connection for each replica.
    raise_limit()
    try:
        report = asyncio.run(_switch(options, urls))
    except (asyncio.CancelledError, KeyboardInterrupt):
        # SIGTERM ends the command as Ctrl-C does.
        print_error(
            "interrupted: the servers that were told change; specgate status --all shows it"
        )
        return INTERRUPTED
    except (OSError, ValueError) as error:
        print_error(str(error))
        return FAILED
    _print(report, as_json=options.json)
    if options.write_state is not None and report.desired is not None:
        failure = _write(options.write_state, report.desired)
        if failure is not None:
            print_error(f"--write-state: {options.write_state}: {failure}")
            return FAILED
    return _EXIT[report.outcome]


async def _switch(options: argparse.Namespace, urls: Sequence[str]) -> FleetReport:
    way = Way(
        options.mode,
        options.timeout or DRAIN_TIMEOUT_S,
        OnTimeout(options.on_timeout or OnTimeout.FAIL),
        options.reason,
    )
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with fleet_client(options.admin_key, PoolPerReplica()) as client:
        fleet = HttpFleet(client, await resolve(urls))
        return await switch_fleet(
            fleet, FleetSwitch(options.method, options.k, options.policies, way)
        )


def _write(path: str, state: DesiredState) -> str | None:
    """Writes the state file at once, so that no reader sees a part of it. Returns what failed."""
    target = Path(path).resolve()
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(state_json(state))
            return None
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_bytes(state_json(state))
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _print(report: FleetReport, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(report)))
        return
    # Without markup: an error is arbitrary text.
    console = Console(width=_WIDTH, markup=False, highlight=False)
    names = ("replica", "outcome", "before", "now", "generation", "in flight", "ms", "why")
    table = Table(*names, box=None, pad_edge=False)
    for replica_report in report.replicas:
        generation = replica_report.fleet_generation
        table.add_row(
            replica_report.replica,
            replica_report.outcome,
            _method(replica_report.previous),
            _method(replica_report.active),
            "-" if generation is None else str(generation),
            "-" if replica_report.switch is None else str(replica_report.switch.in_flight),
            "-" if replica_report.switch is None else f"{replica_report.switch.waited_ms:.1f}",
            "" if replica_report.obstacle is None else printable(replica_report.obstacle.message),
        )
    console.print(table)
    console.print()
    console.print(_sentence(report), soft_wrap=True)


def _sentence(report: FleetReport) -> str:
    total, switched = len(report.replicas), report.named(ReplicaOutcome.SWITCHED)
    late_replicas = ", ".join(
        f"{replica_report.replica} ({replica_report.outcome})"
        for replica_report in report.replicas
        if replica_report not in switched
    )
    what = {
        FleetOutcome.SWITCHED: f"{total} of {total} replicas switched",
        FleetOutcome.PARTIAL: f"{len(switched)} of {total} replicas switched; not yet: "
        f"{late_replicas}. Those that lag follow by themselves, and so do those that have peers",
        FleetOutcome.UNCHANGED: "nothing has changed",
    }[report.outcome]
    number = "" if report.desired is None else f", generation {report.desired.generation}"
    times = f"{report.took_ms:.1f} ms (check {report.check_ms:.1f})"
    why = "" if report.obstacle is None else f"; {printable(report.obstacle.message)}"
    return f"{report.outcome}: {what}{number}, {times}{why}"


def _method(method: SpecMethodBody | None) -> str:
    return "?" if method is None else method_text(asdict(method))


def _policies(text: str) -> dict[str, Any]:
    try:
        policies = json.loads(text)
    except ValueError:
        policies = None
    if not isinstance(policies, dict) or not all(isinstance(p, dict) for p in policies.values()):
        raise argparse.ArgumentTypeError(f"must be a JSON object of objects, got {text!r}")
    return policies
