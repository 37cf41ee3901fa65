"""`python -m benchmarks.simulation replay`: policies over a recorded trace."""

import argparse
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.commands.arguments import (
    MAX_SEED,
    BadArgument,
    add_count,
    add_out,
    count,
    json_object,
    number,
    print_lines,
)
from benchmarks.commands.result_table import ResultTable
from benchmarks.plan.policy_arguments import add_policy, policies
from benchmarks.simulation.costs import Noise
from benchmarks.simulation.replay import TABLE_HEAD, ReplayPlan, replay, table_row
from benchmarks.simulation.trace import load_trace
from benchmarks.simulation.workloads import WORKLOADS
from engine_adapter.policies.catalog import read_policy
from engine_adapter.policies.names import AUTO, LOAD, POLICY_NAMES, policy_name
from engine_adapter.policies.parameters import PolicyError
from server.commands.admin_client import Parser

STREAMS = (1, 4, 16)


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "python -m benchmarks.simulation replay",
        "Replays policies over a recorded trace, without an engine: speed, and regret against "
        "every static choice, routing by label and a hindsight oracle.",
    )
    parser.add_argument("trace", type=Path, help="a file of `record`")
    add_policy(parser, f"default: {AUTO} and {LOAD}")
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
    add_count(parser, "--requests", 60, "requests of a phase")
    parser.add_argument(
        "--seed",
        type=number(0, MAX_SEED, int),
        default=0,
        help="seed of order and noise (default: 0)",
    )
    _add_noise(parser)
    parser.add_argument(
        "--parameters",
        type=json_object,
        default={},
        metavar="JSON",
        help='parameters by policy: {"auto": {"min_gain": 0.05}}',
    )
    _add_planning(parser)
    add_out(parser, "for replay.json, replay.md and replay.svg")
    return parser


def _add_planning(parser: Parser) -> None:
    parser.add_argument("--primary", metavar="NAME", help="the proposer that load uses by default")
    parser.add_argument(
        "--late",
        action="store_true",
        help="policies learn a step later, as under asynchronous scheduling",
    )


def _add_noise(parser: Parser) -> None:
    parser.add_argument(
        "--noise",
        type=number(0.0, 1.0),
        default=0.05,
        metavar="SPREAD",
        help="standard deviation of the logarithm of every time (default: 0.05)",
    )
    parser.add_argument(
        "--outliers",
        type=number(0.0, 1.0),
        default=0.0,
        metavar="SHARE",
        help="share of the times that become 20 times as long (default: 0)",
    )


def run(options: argparse.Namespace, command: str) -> int:
    """Replays, prints and writes. Returns the exit status."""
    trace = load_trace(options.trace)
    names = policies(options) if options.policy else [AUTO, LOAD]
    ks = {traits.name: traits.num_speculative_tokens for traits in trace.proposers}
    if options.primary not in (None, *ks):
        raise BadArgument(f"--primary: {options.primary!r} is not in the trace: {', '.join(ks)}")
    plan = ReplayPlan(
        trace=trace,
        policies=names,
        workloads=options.workload or list(WORKLOADS),
        streams=options.streams or STREAMS,
        size=options.requests,
        seed=options.seed,
        noise=Noise(options.noise, options.outliers, seed=options.seed),
        parameters=_parameters(options, ks),
        primary=options.primary,
        late=options.late,
    )
    info = report.environment_info(command, trace.target)
    with ResultTable(options.out, "replay", info, TABLE_HEAD, table_row) as table:
        for result in replay(plan):
            table.add(result)
    _plot(table.results, options.out)
    return 0


def _parameters(options: argparse.Namespace, ks: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """The parameters of each policy. Raises `BadArgument`.

    Args:
        options: the arguments.
        ks: the most tokens that each proposer of the trace drafts.
    """
    parameters = {}
    for name, values in options.parameters.items():
        policy = policy_name(name)
        if policy is None:
            there_are = ", ".join(POLICY_NAMES)
            raise BadArgument(f"--parameters: no policy {name[:80]!r}; there are {there_are}")
        if not isinstance(values, dict):
            raise BadArgument(f"--parameters: {name}: must be a JSON object")
        try:
            read_policy(policy, values, ks, options.primary)
        except PolicyError as error:
            raise BadArgument(f"--parameters: {name}.{error}") from None
        parameters[policy] = values
    return parameters


def _plot(results: Sequence[Any], folder: Path) -> None:
    """Draws the plot if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        print_lines("no plot: it needs matplotlib (pip install 'specgate[bench]')")
        return
    from benchmarks.simulation import plot

    plot.save(results, folder / "replay.svg")
