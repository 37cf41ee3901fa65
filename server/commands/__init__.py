"""The commands of `specgate`, one module each, and their exit statuses."""

import sys

FAILED, BAD_SETTING, NO_DEVICE, INTERRUPTED = 1, 2, 3, 130
"""Exit statuses: the command failed; a flag or setting is invalid; there is no GPU; Ctrl-C."""


def print_error(message: str) -> None:
    """Prints on the terminal why the command ends."""
    print(f"specgate: error: {message}", file=sys.stderr, flush=True)
