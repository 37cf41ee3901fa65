"""How fast a queue empties, on a clock of the test's own."""

from server.control.drain_rate import DrainRate


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_only_the_last_departures_count() -> None:
    clock = Clock()
    rate = DrainRate(clock)
    rate.begin()
    for _ in range(500):
        clock.now_s += 10
        rate.count()
    for _ in range(64):
        clock.now_s += 0.5
        rate.count()
    assert rate.seconds_for(20) == 10


def test_nothing_is_known_before_the_first_departure() -> None:
    rate = DrainRate(Clock())
    assert rate.seconds_for(5) is None
    rate.begin()
    assert rate.seconds_for(5) is None
