"""Quarantine: a proposer that fails repeatedly is no longer called.

The scheduler decides it, so every rank skips the proposer from the same step on. It counts the
faults of rank 0, whose drafts are the ones that are verified.
"""

from collections import deque
from collections.abc import Mapping

MAX_FAULTS = 5
"""Faults within `WINDOW_S` that quarantine a proposer."""

WINDOW_S = 60.0
"""The time over which faults are counted, in seconds."""


class Quarantine:
    """Counts the faults of every proposer.

    Attributes:
        names: the quarantined proposers. One stays in it until its faults are cleared.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._faults: dict[str, deque[float]] = {}

    def record_faults(self, faults: Mapping[str, str], now_s: float) -> list[str]:
        """Counts the faults of one step; returns the proposers that they quarantine.

        Args:
            faults: proposer -> cause.
            now_s: the time of the step, on a monotonic clock.
        """
        newly_quarantined = []
        for name in faults:
            times = self._faults.setdefault(name, deque(maxlen=MAX_FAULTS))
            times.append(now_s)
            # Steps that were scheduled before the quarantine may report more faults.
            is_new = name not in self.names
            if is_new and len(times) == MAX_FAULTS and now_s - times[0] <= WINDOW_S:
                newly_quarantined.append(name)
        self.names |= frozenset(newly_quarantined)
        return newly_quarantined

    def clear_faults(self, name: str) -> None:
        """Forgets a proposer's faults, and ends its quarantine."""
        self.names -= {name}
        self._faults.pop(name, None)
