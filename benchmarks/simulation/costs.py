"""What a step costs in a simulation: the target's time, the proposers' times, and noise."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TargetCost:
    """Seconds of the target's part of a step.

    Attributes:
        points: (tokens, seconds) of steps without prefill, tokens rising; between two points the
            time is interpolated, beyond the last it rises as between the last two. It may fall
            with more tokens, as measured times do.
        context_token_s: for each token of the rows' context.
        prompt_token_s: for each token of a prompt.
    """

    points: tuple[tuple[int, float], ...]
    context_token_s: float = 0.0
    prompt_token_s: float = 0.0

    def seconds(self, tokens: float, context: float = 0.0, prompt: float = 0.0) -> float:
        """A step that decodes `tokens` tokens, drafts included, and reads `prompt` more."""
        sizes = [float(n) for n, _ in self.points]
        values = [seconds for _, seconds in self.points]
        base = float(np.interp(tokens, sizes, values))
        if tokens > sizes[-1] and len(sizes) > 1:
            slope = (values[-1] - values[-2]) / (sizes[-1] - sizes[-2])
            base += max(slope, 0.0) * (tokens - sizes[-1])
        return base + self.context_token_s * context + self.prompt_token_s * prompt


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Seconds of one proposer's call: a constant, and a part per row, pass and token.

    Attributes:
        call_s, row_s, pass_s, token_s: of the call, each row, each pass, each drafted token.
        catchup_token_s: of each token that the proposer has not read.
    """

    call_s: float
    row_s: float = 0.0
    pass_s: float = 0.0
    token_s: float = 0.0
    catchup_token_s: float = 0.0

    def seconds(self, rows: int, longest: int, tokens: int, catchup: int) -> float:
        """One call."""
        return (
            self.call_s
            + self.row_s * rows
            + self.pass_s * longest
            + self.token_s * tokens
            + self.catchup_token_s * catchup
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """All costs; `drafts` by proposer."""

    target: TargetCost
    drafts: Mapping[str, DraftCost]


@dataclass(frozen=True, slots=True)
class SlowPhase:
    """Every time is `factor` times as long in the steps from `start` to before `end`."""

    start: int
    end: int
    factor: float


@dataclass(frozen=True, slots=True)
class Noise:
    """How measured times differ from the costs.

    Attributes:
        spread: the standard deviation of a time's logarithm.
        outliers: the share of times that are `outlier_factor` times as long.
        slow: phases in which the whole machine is slower.
    """

    spread: float = 0.0
    outliers: float = 0.0
    outlier_factor: float = 20.0
    slow: tuple[SlowPhase, ...] = ()
    seed: int = 0


QUIET = Noise()
"""Every time is its cost."""


class Clock:
    """Draws the times of a simulation.

    Each step has random numbers of its own, so that two policies that are replayed with one seed
    meet the same pauses at the same steps.
    """

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._random = np.random.default_rng(noise.seed)
        self._slow = 1.0

    def start_step(self, step: int) -> None:
        """The times that follow are those of this step."""
        self._random = np.random.default_rng((self._noise.seed, step))
        self._slow = 1.0
        for phase in self._noise.slow:
            if phase.start <= step < phase.end:
                self._slow *= phase.factor

    def measure(self, seconds: float) -> float:
        """The time that a part of the step takes."""
        noise = self._noise
        if noise.spread:
            seconds *= float(self._random.lognormal(0.0, noise.spread))
        if noise.outliers and self._random.random() < noise.outliers:
            seconds *= noise.outlier_factor
        return seconds * self._slow
