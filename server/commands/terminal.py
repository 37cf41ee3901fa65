"""The terminal that a command was started from: it may be closed while the command runs."""

import os

_STDIN = 0


class Terminal:
    """The terminal that the standard input is, if it is one."""

    def __init__(self, descriptor: int = _STDIN) -> None:
        self._descriptor = descriptor
        self._existed = os.isatty(descriptor)

    @property
    def was_closed(self) -> bool:
        """Whether it has been closed: a hang-up then ends the command, as without a handler."""
        return self._existed and not os.isatty(self._descriptor)
