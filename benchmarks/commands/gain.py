"""`specgate bench gain`: each proposer against none."""

import argparse
import asyncio
from typing import TYPE_CHECKING

from benchmarks.commands.arguments import (
    add_load,
    add_models,
    add_servers,
    launcher,
    number,
    read_specs,
)
from benchmarks.commands.result_table import ResultTable
from server.commands.admin_client import Parser

if TYPE_CHECKING:
    from benchmarks.speedup import SpeedupPlan


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "specgate bench gain", "Measures the speedup of every proposer over none on one server."
    )
    add_models(parser, target="wide")
    add_load(parser, levels=(1, 2, 4, 8, 16))
    add_servers(parser)
    parser.add_argument(
        "--temperature",
        action="append",
        type=number(0.0, 2.0),
        metavar="T",
        help="temperature of the requests (repeatable; default: 0 and 0.7)",
    )
    parser.add_argument(
        "--kind",
        action="append",
        choices=("quote", "free"),
        help="kind of prompts (repeatable; default: both)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help="policy that is measured too (repeatable; default: auto)",
    )
    parser.add_argument(
        "--minutes",
        type=number(0.1, 1440.0),
        default=35.0,
        help="approximate duration (default: 35)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few prompts and short answers, to check that it works"
    )
    return parser


def run(options: argparse.Namespace, command: str) -> int:
    """Measures, prints and writes. Returns the exit status."""
    from benchmarks import plot, report
    from benchmarks.speedup import TABLE_HEAD, measure_speedups, table_row, tables

    plan = _plan(options)
    info = report.environment_info(command, options.target)
    plot.check()
    with ResultTable(options.out, "gain", info, TABLE_HEAD, table_row, tables) as table:
        asyncio.run(measure_speedups(plan, launcher(options), table.add))
    plot.save(table.results, options.out / "gain.svg", f"Target: {options.target}")
    return 0


def _plan(options: argparse.Namespace) -> "SpeedupPlan":
    from benchmarks.speedup import QUICK_PROMPTS, SpeedupPlan
    from benchmarks.targets import target_path
    from demo.prompts import KINDS

    return SpeedupPlan(
        target=target_path(options.target),
        specs=read_specs(options),
        temperatures=options.temperature or (0.0, 0.7),
        levels=options.concurrency or ((1, 2) if options.quick else options.levels),
        kinds=options.kind or KINDS,
        minutes=0 if options.quick else options.minutes,
        prompts=QUICK_PROMPTS if options.quick else 0,
        policies=options.policy or ("auto",),
    )
