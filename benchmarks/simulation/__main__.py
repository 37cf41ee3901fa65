"""`python -m benchmarks.simulation`: records a trace, and replays policies over it."""

import sys
from collections.abc import Sequence

from benchmarks.commands import run_command
from benchmarks.simulation import record_command, replay_command
from server.commands.admin_client import Parser

COMMANDS = {"record": record_command, "replay": replay_command}


def main(argv: Sequence[str]) -> int:
    """Runs the command that the first word names. Returns the process's exit status."""
    parser = Parser("python -m benchmarks.simulation", "Replays policies over recorded drafts.")
    parser.add_argument("command", choices=COMMANDS, help="each has --help")
    command = COMMANDS[parser.parse_args(argv[:1]).command]
    return run_command(command.make_parser(), command.run, argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
