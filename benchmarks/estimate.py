"""Statistics of paired measurements: medians with bootstrap intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
_SEED = 2026


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its interval.

    Attributes:
        median: of the sample.
        low, high: bounds of the interval.
        count: size of the sample.
    """

    median: float
    low: float
    high: float
    count: int

    def text(self, digits: int = 2, sign: str = "") -> str:
        """`median (low to high)`; `sign` is a sign option of the format, e.g. `+`."""
        return (
            f"{self.median:{sign}.{digits}f} "
            f"({self.low:{sign}.{digits}f} to {self.high:{sign}.{digits}f})"
        )


def median_interval(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """The sample's median with its percentile bootstrap interval.

    It is the median because a single pair that another process disturbed must not move the result.
    Resampling has a fixed seed: the same values give the same interval. Raises `ValueError` for an
    empty sample.
    """
    sample = np.asarray(values, dtype=float)
    if not sample.size:
        raise ValueError("an estimate needs at least one value")
    rng = np.random.default_rng(_SEED)
    drawn = rng.integers(0, sample.size, size=(RESAMPLES, sample.size))
    medians = np.median(sample[drawn], axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(np.median(sample)), float(low), float(high), int(sample.size))


def paired_ratio(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """The median of `values[i] / base[i]`. Raises `ValueError` if the lengths differ."""
    return median_interval([a / b for a, b in zip(values, base, strict=True)])


def paired_difference(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """The median of `values[i] - base[i]`. Raises `ValueError` if the lengths differ."""
    return median_interval([a - b for a, b in zip(values, base, strict=True)])
