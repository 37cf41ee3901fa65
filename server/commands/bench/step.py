"""`specgate bench step`: the CPU time of an engine step."""

import argparse
from collections.abc import Sequence

from benchmarks.sides import Side
from server.commands.admin_client import Parser
from server.commands.bench.arguments import (
    add_count,
    add_models,
    add_sides,
    count,
    measured_sides,
    method_names,
    print_lines,
    read_specs,
)


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "specgate bench step",
        "Compares the CPU time of an engine step with stock vLLM's, without a server.",
    )
    add_models(parser, target="demo")
    add_sides(parser, Side.STOCK_V2)
    add_count(parser, "--streams", 1, "concurrent requests")
    add_count(parser, "--rounds", 60, "turns per side and start")
    add_count(parser, "--starts", 1, "how often the engines are started")
    parser.add_argument(
        "--profile",
        type=count,
        metavar="STEPS",
        help="profile each side over this number of steps instead",
    )
    return parser


def run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Measures, prints and writes. Returns the exit status."""
    from benchmarks.step_cost import StepPlan, measure_steps
    from benchmarks.targets import target_path

    specs = read_specs(options)
    plan = StepPlan(
        target=target_path(options.target),
        specs=specs,
        methods=method_names(options, specs),
        sides=measured_sides(options),
        streams=options.streams,
        rounds=options.rounds,
        starts=options.starts,
        profile_steps=options.profile,
    )
    measure_steps(plan, print_lines)
    return 0
