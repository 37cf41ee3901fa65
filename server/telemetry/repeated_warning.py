"""Warnings that can come thousands of times a second."""

import structlog

LOG_EVERY_S = 10.0
"""Seconds between two log lines about the same thing; those between are counted in the next."""

log = structlog.get_logger(__name__)


class RepeatedWarning:
    """Few lines for many warnings: a line has the number of those since the last one.

    Args:
        event: the name of the line.
        every_s: the least seconds between two lines.
    """

    def __init__(self, event: str, every_s: float = LOG_EVERY_S) -> None:
        self._event = event
        self._every_s = every_s
        self._next_at = float("-inf")
        self._count = 0
        self._last_fields: dict[str, object] = {}

    def add(self, now_s: float, **fields: object) -> None:
        """Counts a warning, and writes a line if the last one is long enough ago."""
        self._count += 1
        self._last_fields = fields
        self.flush(now_s)

    def flush(self, now_s: float) -> None:
        """Writes a line for what has been counted since the last one, if that is long ago."""
        if self._count and now_s >= self._next_at:
            log.warning(self._event, **self._last_fields, count=self._count)
            self._next_at, self._count = now_s + self._every_s, 0
