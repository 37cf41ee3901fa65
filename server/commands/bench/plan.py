"""`specgate bench plan`: what a policy's plan costs, in CPU time."""

import argparse
from collections.abc import Sequence

from engine_adapter.policies.names import POLICY_NAMES, policy_name
from server.commands.admin_client import Parser
from server.commands.bench.arguments import BadArgument, add_count, count, print_lines

ROWS = (1, 16, 64, 256)


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "specgate bench plan",
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


def add_policy(parser: Parser, default: str) -> None:
    """Adds `--policy`."""
    parser.add_argument(
        "--policy", action="append", metavar="NAME", help=f"policy (repeatable; {default})"
    )


def policies(options: argparse.Namespace) -> list[str]:
    """The policies of `--policy`, each once, or all. Raises `BadArgument` for an unknown one."""
    for name in options.policy or ():
        if policy_name(name) is None:
            there_are = ", ".join(POLICY_NAMES)
            raise BadArgument(f"--policy: {name[:80]!r} is unknown; there are {there_are}")
    names = [policy_name(name) or name for name in options.policy or POLICY_NAMES]
    return list(dict.fromkeys(names))


def run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Measures and prints. Returns the exit status."""
    from benchmarks.plan_cost import (
        PROFILE_HEAD,
        TABLE_HEAD,
        measure_plans,
        profile_rows,
        table_row,
    )

    names, rows = policies(options), options.rows or ROWS
    if options.profile:
        for name in names:
            for number in rows:
                print_lines(f"**{name}, {number} rows**", "", *PROFILE_HEAD)
                print_lines(*profile_rows(name, number, options.steps), "")
        return 0
    print_lines(*TABLE_HEAD)
    for cost in measure_plans(names, rows, options.steps):
        print_lines(table_row(cost))
    return 0
