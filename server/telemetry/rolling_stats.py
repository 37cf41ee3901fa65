"""Sums over the last seconds, for the figures that `/v1/spec_method` shows.

Prometheus has the counters; these sums save an operator without one the arithmetic.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine_adapter.counts import ProposerCounts

WINDOW_S = 60
"""How far back the sums reach, in seconds."""


@dataclass(frozen=True, slots=True)
class RollingStats:
    """What one proposer did in the window. A ratio is `None` where nothing was drafted.

    Attributes:
        drafts, drafted, accepted: as in `ProposerCounts`.
        acceptance_rate: accepted / drafted.
        mean_acceptance_length: 1 + accepted / drafts, the bonus token included.
        system_efficiency: (accepted + drafts) / (drafted + drafts): tokens emitted of those
            that would have been, had every draft been right.
    """

    drafts: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    system_efficiency: float | None


@dataclass(slots=True)
class _Second:
    at: int
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0


class RollingCounts:
    """One proposer's counts over the last `window_s` seconds, in one bucket a second."""

    def __init__(
        self, window_s: int = WINDOW_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._seconds: deque[_Second] = deque()

    def add(self, counts: ProposerCounts) -> None:
        """Adds one step's counts to the present second."""
        now = int(self._clock())
        if not self._seconds or self._seconds[-1].at != now:
            self._forget(now)
            self._seconds.append(_Second(now))
        second = self._seconds[-1]
        second.drafts += counts.drafts
        second.drafted += counts.drafted
        second.accepted += counts.accepted

    def figures(self) -> RollingStats:
        """The sums and ratios of the window that ends now."""
        self._forget(int(self._clock()))
        drafts = sum(s.drafts for s in self._seconds)
        drafted = sum(s.drafted for s in self._seconds)
        accepted = sum(s.accepted for s in self._seconds)
        return RollingStats(
            drafts=drafts,
            drafted=drafted,
            accepted=accepted,
            acceptance_rate=accepted / drafted if drafted else None,
            mean_acceptance_length=1 + accepted / drafts if drafts else None,
            system_efficiency=(accepted + drafts) / (drafted + drafts) if drafts else None,
        )

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0].at <= now - self._window_s:
            self._seconds.popleft()
