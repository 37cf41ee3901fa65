"""The argument `--policy`."""

import argparse

from benchmarks.commands.arguments import BadArgument
from engine_adapter.policies.names import POLICY_NAMES, policy_name
from server.commands.admin_client import Parser


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
