"""A process of the engine ends with the one that started it, however that one ended.

vLLM's engine waits for requests for ever, with all its memory, once a gateway is killed that could
not stop it.
"""

import multiprocessing
import os
import threading
from functools import cache
from multiprocessing.connection import wait

EXIT_STATUS = 1
"""Of a process whose parent is gone: nobody is left to read it."""


@cache
def end_with_parent() -> None:
    """Ends this process at once when the one that started it is gone. Safe to call twice."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        thread = threading.Thread(
            target=_end_after, args=(parent.sentinel,), daemon=True, name="lifeline"
        )
        thread.start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    # Not `sys.exit`: another thread may be deep in a step, and there is nothing to tidy up for.
    os._exit(EXIT_STATUS)
