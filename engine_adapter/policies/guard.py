"""The guard: speculation under a policy may lose a small, stated share of plain decoding's tokens.

A ledger compares the tokens that the steps emitted with those that plain decoding would have
emitted in the same time, both as decayed sums over about `window` steps:

    lost = 1 - emitted / plain,   plain = sum of rows * seconds / seconds of a plain step

The seconds of a plain step come from the fitted model. Where `lost` exceeds the limit, the machine
may just have become slower. So the guard first checks: a few steps decode plainly, and the median
of their seconds over the model's corrects the ledger. If the loss is real, the policy is suspended:
every row decodes plainly for a back-off, which doubles with each loss that follows soon. Then the
policy tries again with an empty ledger.
"""

from dataclasses import dataclass
from statistics import median
from typing import Any

from engine_adapter.policies.contract import StepResult

FIRST_BACKOFF, MAX_BACKOFF = 32, 2048
"""Steps of plain decoding after a loss."""

MIN_STEPS = 8
"""Steps of a trial before the ledger can end it."""

CHECK_STEPS = 5
"""Steps of plain decoding that tell a loss from a slower machine."""


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
        self._checked: list[float] | None = None
        self.suspensions = 0
        self._start_trial()

    def _start_trial(self) -> None:
        self._emitted = self._plain = 0.0
        self._steps = 0

    @property
    def suspended(self) -> bool:
        """Whether the policy must decode plainly, also for a check."""
        return self._pause > 0 or self._checked is not None

    @property
    def lost(self) -> float:
        """The share of plain decoding's tokens that the trial lost; negative is a gain."""
        return 1 - self._emitted / self._plain if self._plain else 0.0

    def observe(self, step: StepResult) -> None:
        """Takes a step."""
        if self._checked is not None:
            if not step.verified:
                self._checked.append(step.slowness)
            if len(self._checked) >= CHECK_STEPS:
                self._end_check(median(self._checked))
        elif self._pause:
            self._pause -= 1
            if not self._pause:
                self._start_trial()
        else:
            self._emitted = self._decay * self._emitted + step.emitted
            self._plain = self._decay * self._plain + step.rows * step.slowness
            self._steps += 1
            if self._steps >= MIN_STEPS and self.lost > self._allowed:
                self._checked = []
            elif self._steps >= self._parameters.window and self.lost < 0:
                self._backoff = FIRST_BACKOFF

    @property
    def _allowed(self) -> float:
        """What a trial may lose: it grows to the limit of a whole window, so that it ends early."""
        window = self._parameters.window
        return self._parameters.limit * window / min(self._steps, window)

    def _end_check(self, slowness: float) -> None:
        """Suspends the policy if it lost against plain steps as slow as these."""
        self._checked = None
        self._plain /= max(slowness, 1e-6)
        if self.lost > self._allowed:
            self._pause = self._backoff
            self._backoff = min(2 * self._backoff, MAX_BACKOFF)
            self.suspensions += 1
        else:
            self._start_trial()

    def state(self) -> dict[str, Any]:
        """For people."""
        return {
            "suspended": self._pause > 0,
            "steps_left": self._pause,
            "lost": round(self.lost, 4),
            "suspensions": self.suspensions,
        }
