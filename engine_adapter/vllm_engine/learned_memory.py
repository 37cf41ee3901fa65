"""What the lexers of one compiled grammar learn while texts are generated, in bytes.

A lexer keeps each state that it has met. llguidance does not say how many it has, so the heap is
read around calls of the matchers: around each call of those that learn much, and around some calls
of all others, because reading takes longer than most of their calls.

Estimates alone are not enough. The grammar that is estimated highest is the one that is ended. It
has mostly learned less than that, and those that are left have learned more: with one call in 16
measured, 64 lexers were estimated at 64 MiB and had learned 640.
"""

import threading

SAMPLED = 1 / 16
"""The share of calls that are measured of a grammar that learns little. Each stands for 16."""

MEASURED_CALLS = 8
"""Calls of a new grammar that are all measured, and so many after a call that learned or was long.
"""

LEARNING_BYTES = 16 << 10
"""What a call allocates that learns, in bytes. Ordinary formats learn 100 kB in a whole text."""

LONG_CALL_S = 0.0003
"""CPU time in which a call may learn much, in seconds: up to 0.1 MB were seen."""

MAX_LEARNED_BYTES = 128 << 20
"""The most that a grammar counts for what it has learned, in bytes. 115 MB were seen, when a lexer
had all the states that it may have.
"""


class LearnedMemory:
    """What a grammar has learned, as far as it was measured.

    Attributes:
        bytes: how much. What was not measured is estimated.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._calls_to_measure = MEASURED_CALLS
        # Those that the next measured call stands for besides its own.
        self._missed_calls = 0

    def weight_of_call(self, draw: float) -> int:
        """How many calls the next one stands for if it is to be measured; 0 if it is not.

        Args:
            draw: a random number from 0 to 1.
        """
        if self._calls_to_measure > 0:
            self._calls_to_measure -= 1
            return 1
        return round(1 / SAMPLED) if draw < SAMPLED else 0

    def count(self, allocated: int, weight: int) -> int:
        """Counts what a call has allocated, in bytes, for all calls that it stands for.

        Returns the bytes that the grammar has learned by it, as far as they count.
        """
        bytes_before = self.bytes
        learned = bytes_before + allocated * (weight + self._missed_calls)
        self.bytes = min(MAX_LEARNED_BYTES, max(0, learned))
        self._missed_calls = 0
        if allocated >= LEARNING_BYTES:
            self.measure_next()
        return self.bytes - bytes_before

    def miss(self, weight: int) -> None:
        """Counts a call that cannot be measured: the next one that can be stands for it too."""
        self._missed_calls += weight

    def note_time(self, seconds: float) -> None:
        """Hears how long a call took that was not measured."""
        if seconds >= LONG_CALL_S:
            self.measure_next()

    def measure_next(self) -> None:
        """The next calls are all measured."""
        self._calls_to_measure = MEASURED_CALLS


class Sections:
    """The sections of code, in all threads, in which matchers allocate memory.

    The heap is the process's: what it grows by belongs to a section that has run alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._num_begun = 0

    def begin(self) -> int | None:
        """A number for `end`; `None` if others run."""
        with self._lock:
            self._running += 1
            self._num_begun += 1
            return self._num_begun if self._running == 1 else None

    def end(self, number: int | None) -> bool:
        """Whether the section has run alone."""
        with self._lock:
            self._running -= 1
            return number == self._num_begun
