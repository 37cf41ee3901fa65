"""Each proposer's sums and ratios over the last minute, for `/v1/spec_method`.

They can also be computed from the Prometheus counters; here they need no Prometheus server.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine_adapter.seam.counts import ProposerCounts

WINDOW_S = 60
"""The length of the window, in seconds."""


@dataclass(frozen=True, slots=True)
class RollingStats:
    """One proposer's last minute; a ratio is null where nothing was drafted.

    Attributes:
        drafts, drafted, accepted: as in `ProposerCounts`.
        acceptance_rate: accepted / drafted.
        mean_acceptance_length: 1 + accepted / drafts, the bonus token included.
        system_efficiency: (accepted + drafts) / (drafted + drafts): the share of the tokens that
            would have been emitted if every draft had been accepted.
    """

    drafts: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    system_efficiency: float | None


class RollingCounts:
    """One proposer's counts over the last `window_s` seconds, in one bucket per second."""

    def __init__(
        self, window_s: int = WINDOW_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._buckets: deque[tuple[int, ProposerCounts]] = deque()

    def add(self, counts: ProposerCounts) -> None:
        """Adds one step's counts to the current second."""
        now_s = int(self._clock())
        if self._buckets and self._buckets[-1][0] == now_s:
            self._buckets[-1] = (now_s, self._buckets[-1][1] + counts)
        else:
            self._forget(now_s)
            self._buckets.append((now_s, counts))

    def stats(self) -> RollingStats:
        """The sums and ratios of the window that ends now."""
        self._forget(int(self._clock()))
        total = sum((counts for _, counts in self._buckets), ProposerCounts())
        drafts, drafted, accepted = total.drafts, total.drafted, total.accepted
        return RollingStats(
            drafts=drafts,
            drafted=drafted,
            accepted=accepted,
            acceptance_rate=accepted / drafted if drafted else None,
            mean_acceptance_length=1 + accepted / drafts if drafts else None,
            system_efficiency=(accepted + drafts) / (drafted + drafts) if drafts else None,
        )

    def _forget(self, now_s: int) -> None:
        while self._buckets and self._buckets[0][0] <= now_s - self._window_s:
            self._buckets.popleft()
