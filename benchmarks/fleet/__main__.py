"""`python -m benchmarks.fleet`: how long a fleet switch takes, by the number of replicas."""

import argparse
import asyncio
import sys

from benchmarks.commands import run_command
from benchmarks.commands.arguments import add_count, count, print_lines
from benchmarks.fleet.run import TABLE_HEAD, growth, measure, table_row, traffic
from server.commands.admin_client import Parser
from server.http.descriptors import raise_limit

REPLICAS = (1, 4, 16, 50)


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "python -m benchmarks.fleet",
        "Measures switches over fleets of servers with the fake engine, on this machine.",
    )
    parser.add_argument(
        "--replicas",
        action="append",
        type=count,
        metavar="N",
        help=f"replicas (repeatable; default: {' '.join(map(str, REPLICAS))})",
    )
    add_count(parser, "--rounds", 21, "measured switches of each size")
    add_count(parser, "--per-process", 25, "most servers in a process")
    return parser


def run(options: argparse.Namespace, command: str) -> int:
    """Measures and prints. Returns the exit status."""
    raise_limit()
    asyncio.run(_run(options))
    return 0


async def _run(options: argparse.Namespace) -> None:
    numbers = sorted(set(options.replicas or REPLICAS))
    costs = []
    print_lines(*TABLE_HEAD)
    async for cost in measure(numbers, options.rounds, options.per_process):
        print_lines(table_row(cost))
        costs.append(cost)
    if len(costs) > 1:
        print_lines("", growth(costs))
    sizes = await traffic()
    print_lines(
        "",
        f"A replica has {sizes.series} series in {sizes.metrics_bytes / 1e3:.0f} kB of /metrics; "
        f"GET /v1/spec_method is {sizes.spec_method_bytes / 1e3:.1f} kB after 100 switches.",
    )


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), run))
