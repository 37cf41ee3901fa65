"""`python -m benchmarks.plan`: what a policy's plan costs, in CPU time."""

import argparse
import sys

from benchmarks.commands import run_command
from benchmarks.commands.arguments import add_count, count, print_lines
from benchmarks.plan.cost import TABLE_HEAD, measure_plans, profile_plans, table_row
from benchmarks.plan.policy_arguments import add_policy, policies
from benchmarks.profiles import profile_rows
from server.commands.admin_client import Parser

ROWS = (1, 16, 64, 256)


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "python -m benchmarks.plan",
        "Measures the CPU time of a policy's plan and of what it learns, per step; no engine.",
    )
    add_policy(parser, "default: every policy")
    parser.add_argument(
        "--rows",
        action="append",
        type=count,
        metavar="N",
        help=f"rows of a step (repeatable; default: {' '.join(map(str, ROWS))})",
    )
    add_count(parser, "--steps", 300, "measured steps")
    parser.add_argument("--profile", action="store_true", help="show the slowest functions instead")
    return parser


def run(options: argparse.Namespace, command: str) -> int:
    """Measures and prints. Returns the exit status."""
    names, rows = policies(options), options.rows or ROWS
    if options.profile:
        for name in names:
            for number in rows:
                profile = profile_plans(name, number, options.steps)
                print_lines(f"**{name}, {number} rows**", "")
                print_lines(*profile_rows(profile, options.steps), "")
        return 0
    print_lines(*TABLE_HEAD)
    for cost in measure_plans(names, rows, options.steps):
        print_lines(table_row(cost))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), run))
