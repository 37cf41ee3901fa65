"""How fast a queue empties, measured."""

from collections.abc import Callable

MEAN_DEPARTURES = 64
"""How many departures the measurement is a mean over: older ones count less and less."""

HALF_LIFE_S = 60.0
"""Seconds with an empty queue after which a measurement has half of its weight."""

_LEAST_WEIGHT = 0.5
"""The least weight, in departures, with which a measurement is used."""


class QueueRate:
    """The rate at which requests leave the queue because their turn has come.

    Departures, and the seconds in which the queue is not empty, are summed with weights that fall
    with each departure, and while the queue is empty. So a burst begins with the rate of the one
    before, unless that is long ago.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._departures = self._seconds = 0.0
        self._has_queue = False
        self._measured_at_s = clock()

    def watch(self, *, has_queue: bool) -> None:
        """Says whether requests are in the queue from now on."""
        self._advance()
        self._has_queue = has_queue

    def count(self) -> None:
        """A request's turn has come."""
        self._advance()
        weight = 1 - 1 / MEAN_DEPARTURES
        self._departures = (self._departures + 1) * weight
        self._seconds *= weight

    def seconds_for(self, requests: int) -> float | None:
        """The time in which so many requests leave; `None` if too little is known.

        The time since the last departure counts too, so that a queue that stands still shows.
        """
        self._advance()
        if self._departures < _LEAST_WEIGHT:
            return None
        return requests * self._seconds / self._departures

    def _advance(self) -> None:
        now_s = self._clock()
        passed_s, self._measured_at_s = now_s - self._measured_at_s, now_s
        if self._has_queue:
            self._seconds += passed_s
        else:
            weight = 0.5 ** (passed_s / HALF_LIFE_S)
            self._departures *= weight
            self._seconds *= weight
