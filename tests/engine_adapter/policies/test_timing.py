"""Step and draft times: monotone, near a known curve, robust to outliers and jumping clocks."""

import math

import numpy as np
import pytest

from engine_adapter.policies.timing import DraftTimeModel, StepTimeModel


def curve(tokens: float) -> float:
    """Seconds of a step: flat up to 8 tokens, then rising."""
    return 0.03 + 0.001 * max(0.0, tokens - 8)


def fitted(samples: int = 600, noise: float = 0.05, outliers: float = 0.0) -> StepTimeModel:
    made, random = StepTimeModel(), np.random.default_rng(0)
    for _ in range(samples):
        rows = int(random.choice([1, 2, 4, 8, 16]))
        tokens = rows + int(random.integers(0, 4 * rows + 1))
        seconds = curve(tokens) * random.lognormal(0, noise)
        if random.random() < outliers:
            seconds *= 30
        made.add(rows, tokens, 100.0 * rows, seconds)
    return made


@pytest.mark.parametrize(("outliers", "tolerance"), [(0.0, 0.1), (0.03, 0.2)])
def test_a_known_curve_is_recovered(outliers: float, tolerance: float) -> None:
    made = fitted(outliers=outliers)
    for rows in (1, 4, 16):
        tokens = np.array([rows * n for n in (1.0, 2.0, 3.0, 5.0)])
        known = [curve(n) for n in tokens]
        assert made.seconds(rows, tokens, 100.0 * rows) == pytest.approx(known, rel=tolerance)


def test_more_tokens_rows_or_context_are_never_faster() -> None:
    made = fitted(noise=0.5)
    tokens = made.seconds(4, np.array(range(4, 300), np.float64), 500.0)
    assert (np.diff(tokens) >= 0).all()
    assert made.plain_seconds(8, 0.0) >= made.plain_seconds(4, 0.0)
    assert made.plain_seconds(4, 5000.0) >= made.plain_seconds(4, 0.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, -math.inf, 93.0])
def test_a_time_that_no_clock_can_give_is_ignored(seconds: float) -> None:
    made = fitted()
    before = made.plain_seconds(4, 400.0)
    for _ in range(50):
        made.add(4, 4, 400.0, seconds)
    assert made.plain_seconds(4, 400.0) == before


def test_one_pause_of_the_machine_moves_the_fit_little() -> None:
    made = fitted()
    before = made.plain_seconds(4, 400.0)
    made.add(4, 4, 400.0, 50.0)
    for _ in range(8):
        made.add(4, 4, 400.0, curve(4))
    assert made.plain_seconds(4, 400.0) == pytest.approx(before, rel=0.1)


def test_a_machine_that_stays_slower_is_followed() -> None:
    made = fitted()
    for _ in range(1500):
        made.add(4, 4, 400.0, 3 * curve(4))
    assert made.plain_seconds(4, 400.0) == pytest.approx(3 * curve(4), rel=0.15)


def test_a_fit_is_restored() -> None:
    made, again = fitted(), StepTimeModel()
    again.fit.restore(made.fit.export())
    assert again.plain_seconds(4, 400.0) == made.plain_seconds(4, 400.0)


def test_the_state_of_another_shape_is_ignored() -> None:
    made, other = DraftTimeModel(), StepTimeModel()
    made.fit.restore(other.fit.export())
    assert made.fit.samples == 0


def test_draft_times_are_near_a_known_cost() -> None:
    made, random = DraftTimeModel(), np.random.default_rng(0)

    def cost(rows: int, longest: int, tokens: int, catchup: int) -> float:
        return 1e-3 + 1e-4 * rows + 2e-3 * longest + 5e-5 * tokens + 1e-5 * catchup

    for _ in range(800):
        rows, longest = int(random.integers(1, 9)), int(random.integers(1, 5))
        catchup = int(random.choice([0, 0, 0, 200]))
        work = rows, longest, rows * longest, catchup
        made.add(*work, cost(*work) * random.lognormal(0, 0.05))
    for work in ((1, 1, 1, 0), (4, 4, 16, 0), (8, 2, 16, 200)):
        assert made.seconds(*work) == pytest.approx(cost(*work), rel=0.15)


def test_no_step_is_predicted_to_take_no_time() -> None:
    made = StepTimeModel()
    made.fit.weights[:] = 0
    assert made.plain_seconds(4, 100.0) > 0
