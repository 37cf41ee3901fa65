"""When requests arrive: closed loops, open loops and ramps of concurrency."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A fixed number of users, each of whom sends a request when the last one has ended."""

    concurrency: int

    @property
    def name(self) -> str:
        """As in the tables."""
        return f"{self.concurrency} concurrent"

    @property
    def level(self) -> float:
        """Position on the axis of a plot."""
        return self.concurrency

    def limit(self, elapsed_s: float) -> int:
        """The most requests in flight."""
        return self.concurrency


@dataclass(frozen=True, slots=True)
class Ramp:
    """A closed loop whose concurrency grows from `low` to `high` and shrinks again.

    Attributes:
        low, high: the first and last number of users, and the number in the middle of the time.
        seconds: the whole duration. The logarithm of the number changes evenly.
    """

    low: int
    high: int
    seconds: float

    @property
    def name(self) -> str:
        """As in the tables."""
        return f"ramp {self.low}:{self.high}:{self.low}"

    @property
    def level(self) -> float:
        """Position on the axis of a plot."""
        return self.high

    def limit(self, elapsed_s: float) -> int:
        """The most requests in flight."""
        share = 1 - abs(2 * min(max(elapsed_s / self.seconds, 0.0), 1.0) - 1)
        return round(self.low * math.pow(self.high / self.low, share))


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests that arrive independently of the answers.

    Attributes:
        rate: requests per second.
        burstiness: shape of the gamma distribution of the gaps, as in `vllm bench serve`: 1 is a
            Poisson process, less is more bursty, more is more even.
    """

    rate: float
    burstiness: float = 1.0

    @property
    def name(self) -> str:
        """As in the tables."""
        shape = "" if self.burstiness == 1 else f", burstiness {self.burstiness:g}"
        return f"{self.rate:g} requests/s{shape}"

    @property
    def level(self) -> float:
        """Position on the axis of a plot."""
        return self.rate

    def times_s(self, count: int, seed: int) -> list[float]:
        """Arrival of `count` requests in seconds after the start; equal for equal seeds."""
        scale = 1 / (self.rate * self.burstiness)
        gaps = np.random.default_rng(seed).gamma(self.burstiness, scale, count)
        return [float(time_s) for time_s in np.cumsum(gaps)]


Arrivals = ClosedLoop | Ramp | OpenLoop
