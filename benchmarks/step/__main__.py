"""`python -m benchmarks.step`: the CPU time of an engine step."""

import argparse
import sys

from benchmarks.commands import run_command
from benchmarks.commands.arguments import (
    add_count,
    add_models,
    add_sides,
    count,
    measured_sides,
    method_names,
    print_lines,
    read_specs,
)
from benchmarks.sides import Side
from benchmarks.step.cost import StepPlan, measure_steps
from benchmarks.targets import target_path
from server.commands.admin_client import Parser


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "python -m benchmarks.step",
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


def run(options: argparse.Namespace, command: str) -> int:
    """Measures and prints. Returns the exit status."""
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


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), run))
