"""`specgate status --all`: the replicas of a fleet, a line each, and whether they agree."""

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from server.commands import DIFFERING, FAILED, print_error
from server.commands.admin_client import method_text, printable
from server.fleet.addresses import resolve
from server.fleet.http_fleet import HttpFleet, PoolPerReplica, fleet_client
from server.fleet.view import ReplicaView, common, view
from server.http.descriptors import raise_limit

REFRESH_S = 2.0
"""Seconds between two updates of `--watch`."""

_WIDTH = 200


def status_all(
    options: argparse.Namespace, urls: Sequence[str], sleep: Callable[[float], None]
) -> int:
    """Shows the fleet once, or until Ctrl-C.

    Returns 0 if every replica answers and has the same method and generation.
    """
    raise_limit()
    try:
        while True:
            fleet = asyncio.run(_fetch(urls, options.admin_key))
            agrees = not any(row.differs for row in fleet)
            if options.json:
                print(json.dumps({"agrees": agrees, "replicas": _json(fleet)}), flush=True)
            else:
                # Without markup: an error is arbitrary text.
                Console(width=_WIDTH, markup=False, highlight=False).print(tables(fleet))
            if not options.watch:
                return 0 if agrees else DIFFERING
            sleep(REFRESH_S)
    except (OSError, ValueError) as error:
        print_error(str(error))
        return FAILED


async def _fetch(urls: Sequence[str], admin_key: str | None) -> list[ReplicaView]:
    async with fleet_client(admin_key, PoolPerReplica()) as client:
        return await view(HttpFleet(client, await resolve(urls)))


def _json(fleet: Sequence[ReplicaView]) -> list[dict[str, Any]]:
    return [
        {"replica": row.replica, "differs": row.differs}
        | ({"error": row.error} if row.spec_method is None else {"spec_method": row.spec_method})
        for row in fleet
    ]


def tables(fleet: Sequence[ReplicaView]) -> Group:
    """A line for each replica, those that differ marked."""
    names = ("", "replica", "active", "generation", "in flight", "acceptance rate", "engine", "why")
    table = Table(*names, box=None, pad_edge=False)
    for row in fleet:
        table.add_row(*_cells(row))
    return Group(Text(_summary(fleet)), Text(), table)


def _cells(row: ReplicaView) -> tuple[str, ...]:
    method = row.spec_method
    if method is None:
        return ("!", row.replica, "?", "-", "-", "-", "-", printable(row.error or ""))
    engine = method["engine"]
    why = [
        *(["differs from the others"] if row.differs else []),
        *(["a switch runs"] if method["fleet"]["switching"] else []),
        *([f"lags: {lag['message']}"] if (lag := method["fleet"]["lag"]) else []),
        *([engine["reason"]] if engine["reason"] else []),
    ]
    return (
        "!" if row.differs or engine["state"] != "serving" else "",
        row.replica,
        method_text(method),
        str(method["fleet"]["generation"]),
        str(sum(method["in_flight"].values())),
        _acceptance(method["proposers"]),
        engine["state"],
        printable("; ".join(why)),
    )


def _summary(fleet: Sequence[ReplicaView]) -> str:
    silent = sum(row.spec_method is None for row in fleet)
    differing = sum(row.differs for row in fleet) - silent
    parts = [f"{len(fleet)} replicas"]
    if (majority := common(fleet)) is not None:
        method = {"spec_method": majority[0], "num_speculative_tokens": majority[1]}
        parts.append(f"{method_text(method)}, generation {majority[2]}")
    parts.append(f"{differing} differ" if differing else "all that answer agree")
    if silent:
        parts.append(f"{silent} do not answer")
    return "fleet      " + "; ".join(parts)


def _acceptance(proposers: Mapping[str, Any]) -> str:
    drafted = sum(counts["drafted"] for counts in proposers.values())
    accepted = sum(counts["accepted"] for counts in proposers.values())
    return f"{accepted / drafted:.2f}" if drafted else "-"
