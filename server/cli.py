"""The `specgate` command."""

import argparse
import sys
from collections.abc import Callable, Sequence

from server import __version__
from server.commands import INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the process's exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser("specgate", description="Speculative decoding, switchable.")
    parser.add_argument("--version", action="version", version=f"specgate {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (text, _) in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    # A command reads its own flags.
    command = parser.parse_args(words[:1]).command
    try:
        return COMMANDS[command][1](words[1:])
    except KeyboardInterrupt:
        return INTERRUPTED


def _serve(argv: Sequence[str]) -> int:
    from server.commands.serve import serve

    return serve(argv)


def _switch(argv: Sequence[str]) -> int:
    from server.commands.switch import switch

    return switch(argv)


def _status(argv: Sequence[str]) -> int:
    from server.commands.status import status

    return status(argv)


def _batch(argv: Sequence[str]) -> int:
    from server.commands.batch import batch

    return batch(argv)


def _bench(argv: Sequence[str]) -> int:
    from server.commands.bench import bench

    return bench(argv)


def _version(argv: Sequence[str]) -> int:
    from server.commands.version import version

    return version(argv)


COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "serve": ("serve a model over OpenAI's API; `specgate serve --help` lists its flags", _serve),
    "switch": ("switch a running server to another method", _switch),
    "status": ("show what a running server drafts with, and how well", _status),
    "batch": ("answer a file of requests, without a server; `specgate batch --help`", _batch),
    "bench": ("measure speed, beside stock vLLM or of each proposer", _bench),
    "version": ("print the versions of Specgate and of its engine", _version),
}
"""Name -> what it does, and who does it. A command's libraries load when it runs."""


if __name__ == "__main__":
    sys.exit(main())
