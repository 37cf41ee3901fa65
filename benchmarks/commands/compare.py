"""`specgate bench compare`: Specgate against stock vLLM."""

import argparse
import asyncio

from benchmarks.commands.arguments import (
    add_count,
    add_load,
    add_models,
    add_servers,
    add_sides,
    launcher,
    measured_sides,
    method_names,
    read_specs,
)
from benchmarks.commands.result_table import ResultTable
from server.commands.admin_client import Parser


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "specgate bench compare",
        "Compares Specgate with stock vLLM, on the same model, arguments and proposer.",
    )
    add_models(parser, target="demo")
    add_load(parser, levels=(1, 8))
    add_sides(parser)
    add_servers(parser)
    parser.add_argument(
        "--stock-defaults",
        action="store_true",
        help="stock vLLM chooses its model runner and its scheduling; Specgate's are fixed",
    )
    add_count(parser, "--pairs", 30, "rounds")
    add_count(parser, "--max-tokens", 128, "length of every answer")
    parser.add_argument(
        "--in-process", action="store_true", help="measure the engines, without their servers"
    )
    return parser


def run(options: argparse.Namespace, command: str) -> int:
    """Measures, prints and writes. Returns the exit status."""
    from benchmarks import report
    from benchmarks.compare import TABLE_HEAD, ComparisonPlan, compare, table_row
    from benchmarks.targets import target_path

    specs = read_specs(options)
    plan = ComparisonPlan(
        target=target_path(options.target),
        specs=specs,
        methods=method_names(options, specs),
        sides=measured_sides(options),
        levels=options.concurrency or options.levels,
        pairs=options.pairs,
        max_tokens=options.max_tokens,
    )
    info = report.environment_info(command, options.target)
    started = launcher(options)
    with ResultTable(options.out, "compare", info, TABLE_HEAD, table_row) as table:
        asyncio.run(compare(plan, started, table.add))
    return 0
