"""Medians and their bootstrap intervals."""

import numpy as np
import pytest

from benchmarks.estimate import median_interval, paired_difference, paired_ratio


def test_one_disturbed_pair_hardly_moves_median_and_interval() -> None:
    calm = [1.0 + 0.01 * (i % 5) for i in range(30)]
    estimate = median_interval([*calm[:-1], 50.0])
    assert estimate.median == pytest.approx(1.02)
    assert 1.0 <= estimate.low <= estimate.median <= estimate.high <= 1.04
    assert estimate.count == 30


def test_the_interval_covers_the_true_median_at_its_level() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        estimate = median_interval(rng.normal(3.0, 1.0, 30).tolist())
        covered += estimate.low <= 3.0 <= estimate.high
    assert 180 <= covered <= 200


def test_the_interval_narrows_with_the_sample() -> None:
    values = np.random.default_rng(2).normal(0.0, 1.0, 400).tolist()
    few, many = median_interval(values[:25]), median_interval(values)
    assert many.high - many.low < (few.high - few.low) / 2


def test_equal_values_give_equal_intervals() -> None:
    assert median_interval([1, 3, 2]) == median_interval([1, 3, 2])


def test_ratios_and_differences_are_computed_pair_by_pair() -> None:
    base = [10.0, 20.0, 40.0]
    assert paired_ratio([20.0, 40.0, 80.0], base).text(1) == "2.0 (2.0 to 2.0)"
    assert paired_difference([9.0, 19.0, 39.0], base).text(1, "+") == "-1.0 (-1.0 to -1.0)"


def test_unpaired_and_empty_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="argument"):
        paired_ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])
