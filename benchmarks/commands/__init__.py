"""The measurements as commands: those of `specgate bench`, and what they share with the others.

A command has `make_parser` and `run`. Those that only developers run are packages beside this one,
which the wheel does not have: `python -m benchmarks.NAME`.
"""

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Sequence

from benchmarks.commands.arguments import BadArgument
from engine_adapter.seam.errors import EngineError
from server.commands import BAD_SETTING, FAILED, INTERRUPTED, print_error
from server.commands.admin_client import Parser

Run = Callable[[argparse.Namespace, str], int]
"""Measures, prints and writes. It gets the options and, for the report, the whole command line; it
returns the exit status."""


def run_command(parser: Parser, run: Run, argv: Sequence[str] | None = None) -> int:
    """Runs a measurement, and reports why it fails. Returns the process's exit status.

    Args:
        argv: the command's arguments; those of this process if they are left out.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(words)
    # SIGTERM ends the measured servers first, as Ctrl-C does. A shell starts a command in the
    # background with SIGINT ignored; the measurement can be interrupted there too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return run(options, " ".join([parser.prog, *map(shlex.quote, words)]))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BadArgument as error:
        print_error(str(error))
        return BAD_SETTING
    except OSError as error:
        print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return FAILED
    except (EngineError, ImportError, RuntimeError, ValueError) as error:
        print_error(str(error))
        return FAILED
