"""The guard: speculation under a policy may lose a small, stated share of plain decoding's tokens.

A ledger compares the tokens that the steps emitted with those that plain decoding would have
emitted in the same time, both as decayed sums over about `window` steps:

    lost = 1 - emitted / plain,   plain = sum of rows * seconds / seconds of a plain step

Where `lost` exceeds the limit, the guard suspends the policy: every row decodes plainly for a
back-off, which doubles with each suspension that follows soon. Then the policy tries again with
an empty ledger. The seconds of a plain step come from the fitted model, which plain steps refresh.
"""

from dataclasses import dataclass
from typing import Any

FIRST_BACKOFF, MAX_BACKOFF = 32, 2048
"""Steps of plain decoding after a loss."""

MIN_STEPS = 24
"""Steps of a trial before the ledger can end it."""


@dataclass(frozen=True, slots=True)
class GuardParameters:
    """The limit of `lost` in (0, 1], and the window in steps."""

    limit: float
    window: int


class Guard:
    """The ledger of one policy.

    Attributes:
        suspensions: how often it suspended the policy.
    """

    def __init__(self, parameters: GuardParameters) -> None:
        self._parameters = parameters
        self._decay = 1 - 1 / parameters.window
        self._backoff = FIRST_BACKOFF
        self._pause = 0
        self.suspensions = 0
        self._start_trial()

    def _start_trial(self) -> None:
        self._emitted = self._plain = 0.0
        self._steps = 0

    @property
    def suspended(self) -> bool:
        """Whether the policy must decode plainly."""
        return self._pause > 0

    @property
    def lost(self) -> float:
        """The share of plain decoding's tokens that the trial lost; negative is a gain."""
        return 1 - self._emitted / self._plain if self._plain else 0.0

    def observe(self, emitted: int, plain: float) -> None:
        """Takes a step.

        Args:
            emitted: the tokens that it emitted.
            plain: the tokens that plain decoding would have emitted in its time.
        """
        if self._pause:
            self._pause -= 1
            if not self._pause:
                self._start_trial()
            return
        self._emitted = self._decay * self._emitted + emitted
        self._plain = self._decay * self._plain + plain
        self._steps += 1
        # What a trial may lose grows to the limit of a whole window, so that it ends early.
        allowed = (
            self._parameters.limit
            * self._parameters.window
            / min(self._steps, self._parameters.window)
        )
        if self._steps >= MIN_STEPS and self.lost > allowed:
            self._pause = self._backoff
            self._backoff = min(2 * self._backoff, MAX_BACKOFF)
            self.suspensions += 1
        elif self._steps >= self._parameters.window and self.lost < 0:
            self._backoff = FIRST_BACKOFF

    def state(self) -> dict[str, Any]:
        """For people."""
        return {
            "suspended": self.suspended,
            "steps_left": self._pause,
            "lost": round(self.lost, 4),
            "suspensions": self.suspensions,
        }
