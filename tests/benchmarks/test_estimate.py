"""Medians and their bootstrap intervals."""

import numpy as np
import pytest

from benchmarks.estimate import mean_ratio, median_interval, paired_difference, paired_ratio


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


def test_a_ratio_of_means_weighs_by_size() -> None:
    found = mean_ratio([[(1.0, 2.0), (30.0, 20.0)]])
    assert found.ratio == pytest.approx(31 / 22)
    assert found.pairs == 2
    assert found.low == pytest.approx(0.5)
    assert found.high == pytest.approx(1.5)


def test_its_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(100):
        clusters = []
        for _ in range(8):
            base = rng.gamma(4.0, 25.0, 16)
            factor = 0.8 * rng.normal(1.0, 0.1)  # a repetition disturbs all of its pairs
            clusters.append(list(zip(factor * base * rng.normal(1.0, 0.1, 16), base, strict=True)))
        found = mean_ratio(clusters)
        held += found.low <= 0.8 <= found.high
    assert 84 <= held <= 100


def test_pairs_of_one_cluster_are_not_taken_for_independent() -> None:
    apart = [[(0.5, 1.0)] * 20, [(1.5, 1.0)] * 20]
    together = [apart[0] + apart[1]]
    wide, narrow = mean_ratio(apart), mean_ratio(together)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_a_ratio_needs_pairs_and_a_base() -> None:
    for clusters in ([], [[(1.0, 1.0)], []]):
        with pytest.raises(ValueError, match="at least one pair"):
            mean_ratio(clusters)
    with pytest.raises(ValueError, match="all bases are 0"):
        mean_ratio([[(1.0, 0.0)]])
    some = mean_ratio([[(1.0, 0.0), (1.0, 1.0), (1.0, 1.0)]])
    assert some.ratio == 1.5
    assert 1.0 <= some.low <= some.high < float("inf")


def test_one_value_and_one_pair_have_no_interval() -> None:
    assert paired_ratio([20.0], [10.0]).text(1) == "2.0"
    assert mean_ratio([[(3.0, 2.0)]]).text(1) == "1.5"
    assert mean_ratio([[(3.0, 2.0), (3.0, 2.0)]]).text(1) == "1.5 (1.5 to 1.5)"
