"""The commands of `specgate`, one file each, and how they fail."""

import sys

FAILED, BAD_SETTING, INTERRUPTED = 1, 2, 130
"""Exit statuses: it could not be done; a flag or setting cannot work; Ctrl-C."""


def complain(message: str) -> None:
    """Says on the terminal why the command ends."""
    print(f"specgate: error: {message}", file=sys.stderr, flush=True)
