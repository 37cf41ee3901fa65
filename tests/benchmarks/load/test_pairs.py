"""Ratios between sides."""

import pytest

from benchmarks.load.pairs import overall, pairs
from tests.benchmarks.load.made import failed, made_pass, sample


def two_sides(factor: float, repetitions: int = 3) -> tuple[list, list]:
    """A side whose requests take `factor` times as long as the base's, which differ a lot."""
    base, side = [], []
    for repetition in range(repetitions):
        latencies = [100.0 * (1 + repetition) * (1 + i) for i in range(8)]
        samples = [sample(i, latency) for i, latency in enumerate(latencies)]
        base.append(made_pass("base", samples, repetition, seconds=1.0 + repetition))
        samples = [sample(i, factor * latency) for i, latency in enumerate(latencies)]
        side.append(made_pass("side", samples, repetition, seconds=factor * (1.0 + repetition)))
    return base, side


def test_a_constant_factor_is_found_exactly() -> None:
    base, side = two_sides(0.5)
    found = pairs(side, base, {})
    assert found.e2e is not None
    assert found.tokens_per_s is not None
    assert (found.e2e.ratio, found.e2e.low, found.e2e.high) == pytest.approx((0.5, 0.5, 0.5))
    assert (found.e2e.pairs, found.tokens_per_s.pairs) == (24, 3)
    assert found.tokens_per_s.ratio == pytest.approx(2.0)
    assert (found.side, found.base) == ("side", "base")


def test_only_requests_that_succeeded_on_both_sides_are_compared() -> None:
    base = [made_pass("base", [sample(0, 100.0), sample(1, 100.0), failed(2, "500")])]
    side = [made_pass("side", [sample(0, 200.0), failed(1, "429"), sample(2, 1.0)])]
    found = pairs(side, base, {})
    assert found.e2e is not None
    assert (found.e2e.ratio, found.e2e.pairs) == (2.0, 1)


def test_interrupted_passes_and_lone_repetitions_are_left_out() -> None:
    base = [made_pass("base", [sample(0, 100.0)], 0), made_pass("base", [sample(0, 100.0)], 1)]
    side = [
        made_pass("side", [sample(0, 900.0)], 1, is_complete=False),
        made_pass("side", [sample(0, 900.0)], 2),
    ]
    assert pairs(side, base, {}).e2e is None
    assert pairs(side, base, {}).tokens_per_s is None
    side.append(made_pass("side", [sample(0, 300.0)], 0))
    found = pairs(side, base, {})
    assert found.e2e is not None
    assert found.e2e.ratio == 3.0


def test_labels_have_ratios_of_their_own() -> None:
    base = [made_pass("base", [sample(0, 100.0), sample(1, 100.0, label="free")])]
    side = [made_pass("side", [sample(0, 50.0), sample(1, 200.0, label="free")])]
    by_label = pairs(side, base, {}).e2e_by_label
    assert {label: r and r.ratio for label, r in by_label.items()} == {"free": 2.0, "quote": 0.5}


def test_goodput_is_compared_if_there_are_objectives() -> None:
    base, side = two_sides(0.5)
    assert pairs(side, base, {}).good_per_s is None
    found = pairs(side, base, {"e2e": 1e9}).good_per_s
    assert found is not None
    assert found.ratio == pytest.approx(2.0)
    assert pairs(side, base, {"e2e": 1.0}).good_per_s is None, "the base has none"


def test_overall_is_a_geometric_mean() -> None:
    ratios = [pairs(side, base, {}) for base, side in (two_sides(0.5), two_sides(2.0))]
    assert overall(ratios) == pytest.approx(1.0)
    assert overall([]) is None
