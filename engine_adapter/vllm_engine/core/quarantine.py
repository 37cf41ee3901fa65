"""Quarantine: a proposer that fails repeatedly is no longer called.

The scheduler decides it, so every rank skips the proposer from the same step on. It counts the
faults of rank 0, whose drafts are the ones that are verified.
"""

from collections import deque
from collections.abc import Mapping

MAX_FAULTS = 5
"""So many faults within `WINDOW_S` quarantine a proposer."""

WINDOW_S = 60.0
"""How far back faults count, in seconds."""


class Quarantine:
    """Counts faults, and says who is not asked any more.

    Attributes:
        names: the proposers that are quarantined, until they are pardoned.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._faults: dict[str, deque[float]] = {}

    def note(self, faults: Mapping[str, str], now_s: float) -> list[str]:
        """Counts a step's faults; returns whom they quarantine.

        Args:
            faults: proposer -> cause.
            now_s: the step's time, on a clock that never goes back.
        """
        condemned = []
        for name in faults:
            times = self._faults.setdefault(name, deque(maxlen=MAX_FAULTS))
            times.append(now_s)
            if len(times) == MAX_FAULTS and now_s - times[0] <= WINDOW_S:
                condemned.append(name)
        self.names |= frozenset(condemned)
        return condemned

    def pardon(self, name: str) -> None:
        """Forgets a proposer's faults: it is loaded anew."""
        self.names -= {name}
        self._faults.pop(name, None)
