"""`specgate bench`: hands over to a measurement of `benchmarks.commands`, which has its parser."""

from collections.abc import Sequence
from importlib import import_module

from server.commands.admin_client import Parser

ACTIONS = {
    "load": "one or several servers under load",
    "compare": "servers against stock vLLM",
    "gain": "each proposer against none",
    "gpu": "what a GPU has to show: exactness, graphs, waits, speed, in one report",
}
"""Name -> help."""


def bench(argv: Sequence[str]) -> int:
    """Runs a measurement and reports its results. Returns the process's exit status."""
    parser = Parser("specgate bench", "Measures speed.")
    actions = "; ".join(f"{name}: {text}" for name, text in ACTIONS.items())
    parser.add_argument("action", choices=ACTIONS, help=f"{actions}; each has --help")
    name = parser.parse_args(argv[:1]).action
    from benchmarks.commands import run_command

    command = import_module(f"benchmarks.commands.{name}")
    return run_command(command.make_parser(), command.run, argv[1:])
