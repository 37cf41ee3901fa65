"""Statistics of paired measurements: medians with bootstrap intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
CLUSTER_RESAMPLES, BLOCK = 2_000, 100
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
        """`median (low to high)`; `sign` is a sign option of the format, e.g. `+`.

        One value has no interval.
        """
        if self.count == 1:
            return f"{self.median:{sign}.{digits}f}"
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
    indices = rng.integers(0, sample.size, size=(RESAMPLES, sample.size))
    medians = np.median(sample[indices], axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(np.median(sample)), float(low), float(high), int(sample.size))


def paired_ratio(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """The median of `values[i] / base[i]`. Raises `ValueError` if the lengths differ."""
    return median_interval([a / b for a, b in zip(values, base, strict=True)])


def paired_difference(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """The median of `values[i] - base[i]`. Raises `ValueError` if the lengths differ."""
    return median_interval([a - b for a, b in zip(values, base, strict=True)])


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its interval.

    Attributes:
        ratio: the estimate.
        low, high: bounds of the interval.
        pairs: pairs that it is taken from.
    """

    ratio: float
    low: float
    high: float
    pairs: int

    def text(self, digits: int = 2) -> str:
        """`ratio (low to high)`; one pair has no interval."""
        if self.pairs == 1:
            return f"{self.ratio:.{digits}f}"
        return f"{self.ratio:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def mean_ratio(clusters: Sequence[Sequence[tuple[float, float]]], level: float = LEVEL) -> Ratio:
    """The mean of `value` over the mean of `base`, over all pairs `(value, base)`.

    The interval is a percentile bootstrap in two stages: clusters are resampled, then the pairs in
    each of them (Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8).
    Pairs of one cluster were measured together, so they are not independent. With one cluster only
    its pairs are resampled. Resamples whose bases are all 0 are left out. Raises `ValueError` if
    there is no pair, or all bases are 0.

    Args:
        clusters: pairs that were measured together; none is empty.
        level: of the interval.
    """
    if not clusters or not all(clusters):
        raise ValueError("a ratio needs at least one pair in each cluster")
    arrays = [np.asarray(cluster, dtype=float) for cluster in clusters]
    value, base = np.concatenate(arrays).sum(axis=0)
    if not base:
        raise ValueError("all bases are 0")
    rng = np.random.default_rng(_SEED)
    # Sums of each cluster in each resample, [clusters, resamples, 2]: drawn once per cluster and
    # combined over the resampled clusters.
    sums = np.stack([_resampled_sums(array, rng) for array in arrays])
    indices = rng.integers(0, len(arrays), size=(len(arrays), CLUSTER_RESAMPLES))
    shuffled = rng.permuted(np.tile(np.arange(CLUSTER_RESAMPLES), (len(arrays), 1)), axis=1)
    totals = sums[indices, shuffled].sum(axis=0)
    totals = totals[totals[:, 1] > 0]
    low, high = np.quantile(totals[:, 0] / totals[:, 1], [(1 - level) / 2, (1 + level) / 2])
    return Ratio(float(value / base), float(low), float(high), sum(map(len, arrays)))


def _resampled_sums(pairs: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Sums over resamples of the pairs, [resamples, 2]."""
    equal = np.full(len(pairs), 1 / len(pairs))
    blocks = range(0, CLUSTER_RESAMPLES, BLOCK)  # whole, the counts could need gigabytes
    return np.concatenate([rng.multinomial(len(pairs), equal, size=BLOCK) @ pairs for _ in blocks])
