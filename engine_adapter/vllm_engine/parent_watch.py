"""An engine process exits when the process that started it ends, for any reason.

If a gateway is killed, it cannot stop its engine. vLLM's engine would then wait for requests
forever and hold its memory.
"""

import multiprocessing
import os
import threading
from functools import cache
from multiprocessing.connection import wait

EXIT_STATUS = 1
"""The exit status of a process whose parent is gone; no process is left to read it."""


@cache
def exit_with_parent() -> None:
    """Exits this process at once when its parent is gone. Safe to call twice."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        thread = threading.Thread(
            target=_exit_after, args=(parent.sentinel,), daemon=True, name="parent-watch"
        )
        thread.start()


def _exit_after(sentinel: int) -> None:
    wait([sentinel])
    # Not `sys.exit`: another thread may be in a step, and nothing needs to be cleaned up.
    os._exit(EXIT_STATUS)
