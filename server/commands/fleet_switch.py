"""`specgate switch --all`: one switch of several servers, at all of them or at none."""

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from server.commands import BAD_SETTING, DIFFERING, FAILED, INTERRUPTED, print_error
from server.commands.admin_client import printable, shown
from server.control.records import SpecMethodBody
from server.control.types import DRAIN_TIMEOUT_S, OnTimeout, SwitchMode
from server.fleet.addresses import resolve
from server.fleet.coordinator import switch_fleet
from server.fleet.http_replica import HttpReplica, fleet_client, http_replicas
from server.fleet.peers import state_json
from server.fleet.pools import PoolPerReplica
from server.fleet.replica import (
    FleetOutcome,
    FleetReport,
    Order,
    ReplicaOutcome,
    ReplicaRefused,
    ReplicaState,
    ReplicaUnreachable,
)
from server.http.descriptors import raise_limit

FLEET_ONLY = ("json", "skip_unreachable", "policies", "write_state")
"""The options that only `--all` has."""

_EXIT = {
    FleetOutcome.SWITCHED: 0,
    FleetOutcome.UNCHANGED: FAILED,
    FleetOutcome.ROLLED_BACK: FAILED,
    FleetOutcome.PARTIAL: DIFFERING,
}
_WIDTH = 200

STATE_S = 10.0
"""How long the replicas may take to say what they have after the switch, in seconds."""

STATE_ASKED = 16
"""How many of the replicas are asked then; one answer is enough."""


def add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `FLEET_ONLY`."""
    parser.add_argument(
        "--skip-unreachable",
        action="store_true",
        help="with --all: switch the others if a replica does not answer (default: none switches)",
    )
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
        report, state = asyncio.run(_switch(options, urls))
    except asyncio.CancelledError:
        # SIGTERM ends the command as Ctrl-C does.
        return INTERRUPTED
    except (OSError, ValueError) as error:
        print_error(str(error))
        return FAILED
    wanted = options.write_state if _has_switched(report) else None
    if wanted is not None and (failure := _write(wanted, state)) is not None:
        print_error(f"--write-state: {wanted}: {failure}")
        return FAILED
    return _EXIT[report.outcome]


async def _switch(
    options: argparse.Namespace, urls: Sequence[str]
) -> tuple[FleetReport, ReplicaState | None]:
    """The report, and what a replica that has switched has, if it is to be written.

    Prints the report, before a replica is asked for its state: that may take a while.
    """
    order = Order(
        options.method,
        options.k,
        options.mode,
        options.timeout or DRAIN_TIMEOUT_S,
        OnTimeout(options.on_timeout or OnTimeout.FAIL),
        options.reason,
        options.policies,
    )
    switching = asyncio.current_task()
    assert switching is not None
    # Otherwise the process would end between the phases; so the switch is rolled back.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, switching.cancel)
    async with fleet_client(options.admin_key, PoolPerReplica()) as client:
        replicas = http_replicas(client, await resolve(urls))
        report = await switch_fleet(
            replicas,
            order,
            skip_unreachable=options.skip_unreachable,
            on_interrupt=lambda report: _print(report, as_json=options.json),
        )
        _print(report, as_json=options.json)
        if options.write_state is None or not _has_switched(report):
            return report, None
        try:
            return report, await _state(replicas, report)
        except asyncio.CancelledError:
            print_error(f"--write-state: {options.write_state}: not written: interrupted")
            raise


def _has_switched(report: FleetReport) -> bool:
    return any(one.outcome == ReplicaOutcome.SWITCHED for one in report.replicas)


async def _state(replicas: Sequence[HttpReplica], report: FleetReport) -> ReplicaState | None:
    """What the replicas that have switched have; `None` if none of them answers.

    Method and generation are those of the report. Only a replica knows the policies that earlier
    switches have set.
    """
    done = {r.replica: r for r in report.replicas if r.outcome == ReplicaOutcome.SWITCHED}
    asked = [replica for replica in replicas if replica.name in done][:STATE_ASKED]
    asking = [asyncio.create_task(replica.state()) for replica in asked]
    try:
        for answer in asyncio.as_completed(asking, timeout=STATE_S):
            try:
                state = await answer
            except (ReplicaRefused, ReplicaUnreachable):
                continue
            return replace(
                state,
                fleet_generation=report.fleet_generation or state.fleet_generation,
                active=done[asked[0].name].active or state.active,
                is_switching=False,
            )
    except TimeoutError:
        pass
    finally:
        for each in asking:
            each.cancel()
    return None


def _write(path: str, state: ReplicaState | None) -> str | None:
    """Writes the state file at once, so that no reader sees a part of it. Returns what failed."""
    if state is None:
        return (
            f"not written: no replica that has switched answers within {STATE_S:g} s; "
            "run the same command again"
        )
    target = Path(path).resolve()
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(state_json(state))
            return None
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            beside.write_bytes(state_json(state))
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
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
    for one in report.replicas:
        table.add_row(
            one.replica,
            one.outcome,
            _method(one.previous),
            _method(one.active),
            _number(one.fleet_generation),
            _number(one.in_flight),
            f"{one.took_ms:.1f}",
            printable(one.error or ""),
        )
    console.print(table)
    console.print()
    console.print(_sentence(report), soft_wrap=True)


def _sentence(report: FleetReport) -> str:
    total = len(report.replicas)
    done = sum(one.outcome == ReplicaOutcome.SWITCHED for one in report.replicas)
    times = (
        f"{report.took_ms:.1f} ms (prepare {report.prepare_ms:.1f}, commit {report.commit_ms:.1f})"
    )
    what = {
        FleetOutcome.SWITCHED: f"{total} of {total} replicas switched",
        FleetOutcome.UNCHANGED: "nothing has changed",
        FleetOutcome.ROLLED_BACK: "every replica has what it had before",
        FleetOutcome.PARTIAL: f"{done} of {total} replicas switched; not known: "
        f"{', '.join(report.unknown)}. Run the same command again when they answer",
    }[report.outcome]
    generation = report.fleet_generation
    number = "" if generation is None else f", generation {generation}"
    why = "" if report.error is None else f"; {printable(report.error)}"
    return f"{report.outcome}: {what}{number}, {times}{why}"


def _method(method: SpecMethodBody | None) -> str:
    return "?" if method is None else shown(asdict(method))


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _policies(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(p, dict) for p in given.values()):
        raise argparse.ArgumentTypeError(f"must be a JSON object of objects, got {text!r}")
    return given
