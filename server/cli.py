"""The `specgate` command."""

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from server import __version__
from server.commands import INTERRUPTED

# A pass of the garbage collector stops every stream, and finds only what lives: a stream has some
# 300 objects, and a request leaves no cycles behind. With Python's own 700 there are ten passes a
# second under load, and a sixth of the time in which vLLM is imported goes into them. It is set
# here for the engine's process too, which imports its parent's main module before all else.
gc.set_threshold(100_000, 5, 5)

COMMANDS = {
    "serve": "serve a model over OpenAI's API; `specgate serve --help` lists its flags",
    "switch": "switch a running server to another method",
    "status": "show the proposers of a running server, and how well they draft",
    "export": "write the methods, policies and rules of a running server as settings",
    "explain": "say which method a request would get from a running server, and why",
    "console": "show and steer a running server in a browser",
    "batch": "answer a file of requests, without a server; `specgate batch --help`",
    "bench": "measure speed: servers under load, beside stock vLLM, each proposer",
    "version": "print the versions of Specgate and of its engine",
}
"""Name -> help. A command is the function of its name in the module of its name in
`server.commands`, imported when it runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the process's exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser("specgate", description="Speculative decoding, switchable.")
    parser.add_argument("--version", action="version", version=f"specgate {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    # A command parses its own flags.
    name = parser.parse_args(words[:1]).command
    try:
        module = import_module(f"server.commands.{name}")
        command: Callable[[Sequence[str]], int] = getattr(module, name)
        return command(words[1:])
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
