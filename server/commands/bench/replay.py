"""`specgate bench replay`: policies over a recorded trace."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_adapter.policies.names import GOODPUT, LOAD
from engine_adapter.policies.parameters import PolicyError
from server.commands.admin_client import Parser
from server.commands.bench.arguments import BadArgument, count, json_object, print_lines
from server.commands.bench.plan import add_policy, policies

WORKLOADS = ("quote", "free", "rag", "mixed", "shift", "ramp", "random")
"""The names of `benchmarks.simulation.workloads.WORKLOADS`."""

STREAMS = (1, 4, 16)


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "specgate bench replay",
        "Replays policies over a recorded trace, without an engine: speed, and regret against "
        "every static choice, routing by label and a hindsight oracle.",
    )
    parser.add_argument("trace", type=Path, help="a file of `specgate bench record`")
    add_policy(parser, f"default: {GOODPUT} and {LOAD}")
    parser.add_argument(
        "--workload",
        action="append",
        choices=WORKLOADS,
        help="which requests run, and in which order (repeatable; default: all)",
    )
    parser.add_argument(
        "--streams",
        action="append",
        type=count,
        metavar="N",
        help=f"concurrent requests (repeatable; default: {' '.join(map(str, STREAMS))})",
    )
    parser.add_argument(
        "--requests", type=count, default=60, help="requests of a phase (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of order and noise (default: 0)")
    _add_noise(parser)
    parser.add_argument(
        "--parameters",
        type=json_object,
        default={},
        metavar="JSON",
        help='parameters by policy: {"goodput": {"min_gain": 0.05}}',
    )
    parser.add_argument("--primary", metavar="NAME", help="the proposer that load uses by default")
    parser.add_argument(
        "--out", type=Path, default=Path("bench-results"), help="folder (default: bench-results)"
    )
    return parser


def _add_noise(parser: Parser) -> None:
    parser.add_argument(
        "--noise",
        type=_share,
        default=0.05,
        metavar="SPREAD",
        help="standard deviation of the logarithm of every time (default: 0.05)",
    )
    parser.add_argument(
        "--outliers",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="share of times that are 20 times as long (default: 0)",
    )


def run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Replays, prints and writes. Returns the exit status."""
    from benchmarks import report
    from benchmarks.simulation.costs import Noise
    from benchmarks.simulation.replay import TABLE_HEAD, ReplayPlan, replay, table_row
    from benchmarks.simulation.trace import load_trace

    trace = load_trace(options.trace)
    names = policies(options) if options.policy else [GOODPUT, LOAD]
    if options.primary not in (None, *(one.name for one in trace.proposers)):
        there_are = ", ".join(one.name for one in trace.proposers)
        raise BadArgument(f"--primary: {options.primary!r} is not in the trace: {there_are}")
    plan = ReplayPlan(
        trace=trace,
        policies=names,
        workloads=options.workload or WORKLOADS,
        streams=options.streams or STREAMS,
        size=options.requests,
        seed=options.seed,
        noise=Noise(options.noise, options.outliers, seed=options.seed),
        parameters=options.parameters,
        primary=options.primary,
    )
    results = []
    print_lines(*TABLE_HEAD)
    try:
        for result in replay(plan):
            results.append(result)
            print_lines(table_row(result))
    except PolicyError as error:
        raise BadArgument(f"--parameters: {error}") from None
    finally:
        if results:
            info = report.environment_info(argv, trace.target)
            rows = [*TABLE_HEAD, *map(table_row, results)]
            report.write(options.out, "replay", info, results, rows)
    _plot(results, options.out)
    return 0


def _plot(results: Sequence[Any], folder: Path) -> None:
    """Draws the plot if matplotlib is installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        print_lines("no plot: it needs matplotlib (pip install 'specgate[bench]')")
        return
    from benchmarks.simulation import plot

    plot.save(results, folder / "replay.svg")


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a number in [0, 1], got {text!r}")
    return value
