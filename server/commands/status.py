"""`specgate status`: the proposers and the active method of a running server."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from server.commands import FAILED, print_error
from server.commands.admin_client import (
    AdminClient,
    AdminClientError,
    Parser,
    method_text,
    policy_lines,
    printable,
)
from server.commands.fleet_status import status_all

SWITCHES_SHOWN = 5
REFRESH_S = 2.0
"""Seconds between two updates of `--watch`."""

FEW = 20
"""Fewer drafted tokens than this say little about a proposer."""

_PIPE_WIDTH = 200


def status(
    argv: Sequence[str],
    transport: httpx.BaseTransport | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Shows the state once, or until Ctrl-C. Returns the process's exit status."""
    parser = Parser("specgate status", "Shows proposers, active method and last switches.")
    parser.add_argument("--json", action="store_true", help="print one JSON object on a line")
    parser.add_argument(
        "--watch", action="store_true", help=f"look again every {REFRESH_S:g} seconds"
    )
    parser.add_connection(several=True)
    options = parser.parse_args(argv)
    urls = parser.fleet_urls(options)
    if options.all:
        return status_all(options, urls, sleep)
    try:
        with AdminClient(urls[0], options.admin_key, transport) as client:
            if options.json:
                _print_json(client, options.watch, sleep)
            else:
                _print_tables(client, options.watch, sleep)
    except AdminClientError as error:
        print_error(str(error))
        return FAILED
    except BrokenPipeError:
        # The reader has closed the pipe. Python flushes at exit, and that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _fetch(client: AdminClient) -> dict[str, Any]:
    """The responses of both routes, as `--json` prints them."""
    return {
        "spec_method": client.get("/v1/spec_method"),
        "proposers": client.get("/v1/proposers")["data"],
    }


def _print_json(client: AdminClient, watch: bool, sleep: Callable[[float], None]) -> None:
    print(json.dumps(_fetch(client)), flush=True)
    while watch:
        sleep(REFRESH_S)
        print(json.dumps(_fetch(client)), flush=True)


def _print_tables(client: AdminClient, watch: bool, sleep: Callable[[float], None]) -> None:
    # Without markup: a switch's reason is arbitrary text.
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else _PIPE_WIDTH, markup=False, highlight=False)
    if not (watch and terminal):
        console.print(tables(_fetch(client)))
        while watch:
            sleep(REFRESH_S)
            console.print()
            console.print(tables(_fetch(client)))
        return
    with Live(tables(_fetch(client)), console=console, auto_refresh=False) as live:
        while True:
            sleep(REFRESH_S)
            live.update(tables(_fetch(client)), refresh=True)


def tables(state: dict[str, Any]) -> Group:
    """What `_fetch` returns, as tables."""
    method = state["spec_method"]
    return Group(
        *(Text(line) for line in _lines(method)),
        Text(),
        _proposers(method, state["proposers"]),
        Text(),
        _switches(method["switches"][:SWITCHES_SHOWN]),
    )


def _lines(method: dict[str, Any]) -> list[str]:
    counts = method["in_flight"]
    breakdown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    lines = [
        f"active     {method_text(method)}, generation {method['generation']}, "
        f"since {_time(method['since'])}",
        f"in flight  {sum(counts.values())}" + (f" ({breakdown})" if breakdown else ""),
    ]
    if policy := method.get("policy"):
        lines += policy_lines(policy)
    lines += _engine_lines(method) + _parser_lines(method)
    if drain := method["drain"]:
        lines.append(
            f"drain      to {method_text(drain['to'])}: {drain['held']} held, "
            f"{drain['waited_ms'] / 1e3:.1f} of {drain['timeout_s']:g} s"
        )
    return lines


def _engine_lines(method: dict[str, Any]) -> list[str]:
    """The engines that do not serve, with their numbers if there are several."""
    engines = method.get("engines", [])
    several = engines[1:]
    names = [f"engine {number}" for number in range(len(engines))] if several else ["engine"]
    return [
        f"{name:<10} {engine['state']}: {printable(engine['reason'])}"
        for name, engine in zip(names, engines if several else [method["engine"]], strict=True)
        if engine["state"] != "serving"
    ]


def _parser_lines(method: dict[str, Any]) -> list[str]:
    """What reads calls and reasoning; a server of an older version does not say so."""
    parsers = method.get("parsers", {})
    return [
        f"{label:<10} {parsers[kind]['name'] or 'none'}: {printable(parsers[kind]['reason'])}"
        for label, kind in (("tools", "tool_call"), ("reasoning", "reasoning"))
        if kind in parsers
    ]


def _proposers(method: dict[str, Any], loaded: Sequence[dict[str, Any]]) -> Table:
    """The loaded proposers and their last minute; the active one is marked with a star."""
    table = Table(
        *("", "proposer", "method", "k", "role", "state"),
        *("acceptance rate", "mean acceptance length", "draft latency ms"),
        box=None,
        pad_edge=False,
    )
    for proposer in loaded:
        name = proposer["name"]
        figures = method["proposers"].get(name, {})
        table.add_row(
            "*" if name == method["spec_method"] else "",
            name,
            proposer["method"],
            str(proposer["num_speculative_tokens"]),
            ", ".join(proposer["roles"]),
            proposer["state"],
            *_acceptance(figures),
            _number(proposer["draft_latency_ms"]),
        )
    return table


def _acceptance(figures: dict[str, Any]) -> tuple[str, str]:
    """The acceptance rate and the mean acceptance length, or how few drafted tokens there are."""
    drafted = figures.get("drafted", 0)
    if 0 < drafted < FEW:
        return f"of only {drafted}", "-"
    return _number(figures.get("acceptance_rate")), _number(figures.get("mean_acceptance_length"))


def _switches(switches: Sequence[dict[str, Any]]) -> Table | Text:
    if not switches:
        return Text("no switch yet")
    names = ("when", "from", "to", "mode", "outcome", "took ms", "who", "reason")
    table = Table(*names, box=None, pad_edge=False)
    for switch in switches:
        table.add_row(
            _time(switch["when"]),
            method_text(switch["from"]),
            method_text(switch["to"]),
            switch["mode"],
            switch["outcome"],
            f"{switch['took_ms']:.1f}",
            switch["who"],
            printable(switch["reason"] or ""),
        )
    return table


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
