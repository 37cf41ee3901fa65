"""The end of a process that has loaded an engine's libraries."""

import gc
import os

STDERR = 2
"""The file descriptor."""


def skip_last_collection() -> None:
    """To be called at the exit of a process: its interpreter then collects no garbage.

    The last collections walk everything that the libraries and the model consist of, for two or
    three seconds, and free nothing that the end of the process does not free. Without them Triton's
    library reports all of its types and functions as leaks, in 28 lines, so the process writes
    nothing more. An error of the interpreter's end shows in the exit status only.
    """
    gc.freeze()
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDERR)
