"""The commands of `specgate`, one module each, and their exit statuses."""

import sys

FAILED, BAD_SETTING, NO_DEVICE, DIFFERING, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit statuses: the command failed; a flag or setting is invalid; there is no GPU; the replicas of
a fleet may have different methods; Ctrl-C."""


def print_error(message: str) -> None:
    """Prints on the terminal why the command ends."""
    print(f"specgate: error: {message}", file=sys.stderr, flush=True)
