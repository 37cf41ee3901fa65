"""`specgate status --all`: the replicas of a fleet, a line each, and whether they agree."""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from server.commands import DIFFERING, FAILED, print_error
from server.commands.admin_client import printable, shown
from server.fleet.addresses import resolve
from server.fleet.http_replica import HttpReplica, fleet_client, http_replicas
from server.fleet.replica import ReplicaRefused, ReplicaUnreachable
from server.http.descriptors import raise_limit

REFRESH_S = 2.0
"""Seconds between two updates of `--watch`."""

ANSWER_S = 10.0
"""How long a replica may take to answer, in seconds."""

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
            fleet = asyncio.run(fetch(urls, options.admin_key))
            agrees = _agrees(fleet)
            if options.json:
                print(json.dumps({"agrees": agrees, "replicas": fleet}), flush=True)
            else:
                # Without markup: an error is arbitrary text.
                Console(width=_WIDTH, markup=False, highlight=False).print(tables(fleet))
            if not options.watch:
                return 0 if agrees else DIFFERING
            sleep(REFRESH_S)
    except (OSError, ValueError) as error:
        print_error(str(error))
        return FAILED


async def fetch(urls: Sequence[str], admin_key: str | None) -> list[dict[str, Any]]:
    """For each replica its name, and its `GET /v1/spec_method` or why there is none."""
    async with fleet_client(admin_key) as client:
        replicas = http_replicas(client, await resolve(urls))
        return await asyncio.gather(*map(ask, replicas))


async def ask(replica: HttpReplica) -> dict[str, Any]:
    """The replica's name, and its `spec_method` or an `error`."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return {"replica": replica.name, "spec_method": await replica.spec_method()}
    except (ReplicaRefused, ReplicaUnreachable) as error:
        return {"replica": replica.name, "error": str(error)}
    except TimeoutError:
        return {"replica": replica.name, "error": f"no answer within {ANSWER_S:g} s"}


def tables(fleet: Sequence[dict[str, Any]]) -> Group:
    """What `fetch` returns: a line for each replica, those that differ marked."""
    common = _common(fleet)
    names = ("", "replica", "active", "generation", "in flight", "acceptance rate", "engine", "why")
    table = Table(*names, box=None, pad_edge=False)
    for one in fleet:
        table.add_row(*_row(one, common))
    return Group(Text(_summary(fleet, common)), Text(), table)


def _row(one: dict[str, Any], common: tuple[str, int] | None) -> tuple[str, ...]:
    if "error" in one:
        return ("!", one["replica"], "?", "-", "-", "-", "-", printable(one["error"]))
    method = one["spec_method"]
    differs = _has(one) != common
    engine = method["engine"]
    why = [
        *(["differs from the others"] if differs else []),
        *(["a switch runs, or is prepared"] if method["fleet"]["switching"] else []),
        *([engine["reason"]] if engine["reason"] else []),
    ]
    return (
        "!" if differs or engine["state"] != "serving" else "",
        one["replica"],
        shown(method),
        str(method["fleet"]["generation"]),
        str(sum(method["in_flight"].values())),
        _acceptance(method["proposers"].values()),
        engine["state"],
        printable("; ".join(why)),
    )


def _summary(fleet: Sequence[dict[str, Any]], common: tuple[str, int] | None) -> str:
    silent = sum("error" in one for one in fleet)
    differing = sum("error" not in one and _has(one) != common for one in fleet)
    parts = [f"{len(fleet)} replicas"]
    if common is not None:
        parts.append(f"{common[0]}, generation {common[1]}")
    parts.append(f"{differing} differ" if differing else "all that answer agree")
    if silent:
        parts.append(f"{silent} do not answer")
    return "fleet      " + "; ".join(parts)


def _has(one: dict[str, Any]) -> tuple[str, int]:
    """What must be the same everywhere: the method with its k, and the generation."""
    return shown(one["spec_method"]), one["spec_method"]["fleet"]["generation"]


def _common(fleet: Sequence[dict[str, Any]]) -> tuple[str, int] | None:
    """What most replicas have; of two that are as frequent, the one of the higher generation."""
    counts = Counter(_has(one) for one in fleet if "error" not in one)
    return max(counts, key=lambda has: (counts[has], has[1]), default=None)


def _agrees(fleet: Sequence[dict[str, Any]]) -> bool:
    return all("error" not in one for one in fleet) and len({_has(one) for one in fleet}) == 1


def _acceptance(figures: Any) -> str:
    drafted = sum(one["drafted"] for one in figures)
    return f"{sum(one['accepted'] for one in figures) / drafted:.2f}" if drafted else "-"
