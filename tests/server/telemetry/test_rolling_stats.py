"""Sums over a moving window."""

import pytest

from engine_adapter.seam.counts import ProposerCounts
from server.telemetry.rolling_stats import RollingCounts

COUNTS = ProposerCounts(drafts=1, drafted=4, accepted=2, accepted_per_position=(1, 1), emitted=3)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_counts_leave_the_window() -> None:
    clock = Clock()
    rolling = RollingCounts(10, clock)
    rolling.add(COUNTS)
    clock.now += 9
    rolling.add(COUNTS)
    assert rolling.stats().drafts == 2
    clock.now += 1
    assert rolling.stats().drafts == 1
    clock.now += 100
    assert rolling.stats().acceptance_rate is None


def test_steps_of_one_second_add_up() -> None:
    clock = Clock()
    rolling = RollingCounts(10, clock)
    for _ in range(1000):
        clock.now += 0.0001
        rolling.add(COUNTS)
    figures = rolling.stats()
    assert (figures.drafts, figures.drafted, figures.accepted) == (1000, 4000, 2000)
    assert figures.acceptance_rate == pytest.approx(0.5)
    assert figures.mean_acceptance_length == pytest.approx(3.0)
    assert figures.system_efficiency == pytest.approx(3 / 5)
