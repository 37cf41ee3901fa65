"""`python -m benchmarks.gateway`: what the gateway itself costs, beside a bare uvicorn app."""

import argparse
import sys

from benchmarks import report
from benchmarks.commands import run_command
from benchmarks.commands.arguments import (
    BadArgument,
    add_count,
    add_out,
    count,
    number,
    print_lines,
)
from benchmarks.gateway import client
from benchmarks.gateway.run import GatewayPlan, measure, profile
from benchmarks.gateway.tables import rows
from benchmarks.profiles import profile_rows
from server.commands.admin_client import Parser

DELTAS, MAX_DELTA = (1, 3), 9


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "python -m benchmarks.gateway",
        "Measures what the gateway adds to each request and event: CPU time, and latency at half "
        "load. Engines replay made deltas; a bare uvicorn app sends the same events.",
    )
    parser.add_argument(
        "--engine",
        choices=("fake", "vllm"),
        default="fake",
        help="vllm: vLLM's front end without its core, beside stock vLLM's (default: fake)",
    )
    add_count(parser, "--tokens", 512, "tokens of a stream")
    parser.add_argument(
        "--delta",
        action="append",
        type=number(1, MAX_DELTA, int),
        metavar="N",
        help="tokens per event (repeatable; default: 1 3)",
    )
    add_count(parser, "--rounds", 5, "turns of each side")
    _add_latency(parser)
    parser.add_argument(
        "--profile",
        type=count,
        metavar="STREAMS",
        help="profile Specgate's functions over this number of streams instead",
    )
    add_out(parser, "for gateway.json, gateway.md and the servers' logs")
    return parser


def _add_latency(parser: Parser) -> None:
    parser.add_argument(
        "--seconds",
        type=number(0, 600),
        default=8.0,
        metavar="S",
        help="seconds of a turn at half load of the fake engine; 0 leaves it out (default: 8)",
    )
    parser.add_argument(
        "--step-ms",
        type=number(1, 1000),
        default=5.0,
        metavar="MS",
        help="time between the events of a stream at half load (default: 5)",
    )
    parser.add_argument(
        "--rate",
        type=number(1, 1000),
        metavar="R",
        help="streams per second at half load, to compare versions (default: found by trials)",
    )
    parser.add_argument(
        "--streams",
        type=number(0, 4000, int),
        default=2000,
        metavar="N",
        help="streams of the fake engine at once, last; 0 leaves them out (default: 2000)",
    )


def run(options: argparse.Namespace, command: str) -> int:
    """Measures, prints and writes. Returns the exit status."""
    plan = GatewayPlan(
        engine=options.engine,
        tokens=options.tokens,
        deltas=options.delta or DELTAS,
        rounds=options.rounds,
        seconds=options.seconds,
        step_ms=options.step_ms,
        rate=options.rate,
        streams=options.streams,
        folder=options.out,
    )
    if options.profile is not None:
        if options.engine != "fake":
            raise BadArgument("--profile: works with --engine fake only")
        path, num_events = client.run(lambda: profile(plan, options.profile))
        print_lines(*profile_rows(str(path), num_events, by_own_time=True))
        return 0
    info = report.environment_info(command)
    results = client.run(lambda: measure(plan, print_lines))
    lines = list(rows(plan, results))
    report.write(plan.folder, "gateway", info, [results], lines)
    print_lines("", *lines)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), run))
