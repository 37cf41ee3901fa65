"""How fast a queue empties, on a clock of the test's own."""

import pytest

from server.control.admission.queue_rate import HALF_LIFE_S, QueueRate


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def measured(clock: Clock, departures: int = 100, each_s: float = 0.5) -> QueueRate:
    """A rate after a burst whose queue is empty again."""
    rate = QueueRate(clock)
    burst(rate, clock, departures, each_s)
    return rate


def burst(rate: QueueRate, clock: Clock, departures: int, each_s: float) -> None:
    rate.watch(has_queue=True)
    for _ in range(departures):
        clock.now_s += each_s
        rate.count()
    rate.watch(has_queue=False)


def test_departures_of_a_steady_queue_give_its_rate() -> None:
    assert measured(Clock()).seconds_for(20) == pytest.approx(10)


def test_old_departures_count_less_and_less() -> None:
    clock = Clock()
    rate = measured(clock, departures=500, each_s=10)
    burst(rate, clock, 64, 0.5)
    early = rate.seconds_for(20)
    burst(rate, clock, 640, 0.5)
    late = rate.seconds_for(20)
    assert early is not None
    assert 10 < early < 100
    assert late == pytest.approx(10, rel=0.02)


def test_nothing_is_known_before_the_first_departure() -> None:
    clock = Clock()
    rate = QueueRate(clock)
    assert rate.seconds_for(5) is None
    rate.watch(has_queue=True)
    clock.now_s += 30
    assert rate.seconds_for(5) is None


def test_one_departure_is_enough() -> None:
    assert measured(Clock(), departures=1, each_s=3).seconds_for(4) == pytest.approx(12)


def test_a_new_burst_begins_with_the_rate_of_the_one_before() -> None:
    clock = Clock()
    rate = measured(clock)
    clock.now_s += 2 * HALF_LIFE_S
    rate.watch(has_queue=True)
    assert rate.seconds_for(20) == pytest.approx(10)


def test_the_longer_the_pause_the_less_it_counts() -> None:
    rates = []
    for pause_s in (0.0, 4 * HALF_LIFE_S):
        clock = Clock()
        rate = measured(clock)
        clock.now_s += pause_s
        burst(rate, clock, 5, 5.0)
        rates.append(rate.seconds_for(1))
    soon, later = rates
    assert soon is not None
    assert later is not None
    assert 0.5 < soon < later < 5


def test_after_a_long_pause_nothing_is_known() -> None:
    clock = Clock()
    rate = measured(clock)
    clock.now_s += 20 * HALF_LIFE_S
    rate.watch(has_queue=True)
    assert rate.seconds_for(20) is None


def test_a_queue_that_stands_still_shows() -> None:
    clock = Clock()
    rate = measured(clock, departures=4)
    rate.watch(has_queue=True)
    clock.now_s += 100
    stuck = rate.seconds_for(1)
    assert stuck is not None
    assert stuck > 20
