"""`specgate bench`: measurements of speed, one module for each."""

import signal
from collections.abc import Callable, Sequence
from importlib import import_module

from engine_adapter.errors import EngineError
from server.commands import BAD_SETTING, FAILED, print_error
from server.commands.admin_client import Parser
from server.commands.bench.arguments import BadArgument

ACTIONS = {
    "load": "one or several servers under load",
    "compare": "servers against stock vLLM",
    "gain": "each proposer against none",
    "step": "CPU time of an engine step",
    "plan": "CPU time of a policy's plan",
    "gateway": "CPU time and latency of the gateway itself",
    "fleet": "switches over many servers at once",
    "gpu": "what a GPU has to show: exactness, graphs, waits, speed, in one report",
    "record": "a trace of every proposer's drafts",
    "replay": "policies over a trace",
}
"""Name -> help. The module of an action's name has its parser and runs it."""


def bench(argv: Sequence[str]) -> int:
    """Runs a measurement and reports its results. Returns the process's exit status."""
    first = Parser("specgate bench", "Measures speed.")
    actions = "; ".join(f"{name}: {text}" for name, text in ACTIONS.items())
    first.add_argument("action", choices=ACTIONS, help=f"{actions}; each has --help")
    name = first.parse_args(argv[:1]).action
    module = import_module(f"server.commands.bench.{name}")
    make_parser: Callable[[], Parser] = module.make_parser
    run: Callable[..., int] = module.run
    options = make_parser().parse_args(argv[1:])
    # SIGTERM ends the measured servers first, as Ctrl-C does. A shell starts a command in the
    # background with SIGINT ignored; the measurement can be interrupted there too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return run(options, argv)
    except BadArgument as error:
        print_error(str(error))
        return BAD_SETTING
    except OSError as error:
        print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return FAILED
    except (EngineError, ImportError, RuntimeError, ValueError) as error:
        print_error(str(error))
        return FAILED
