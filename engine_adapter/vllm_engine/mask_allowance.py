"""The CPU time that the masks of a grammar may take."""

from dataclasses import dataclass

BURST_S = 0.3
"""CPU time that the masks of one grammar may take at once, in seconds: its first ones are slow."""

CREDIT_S = 0.05
"""CPU time that each new sequence brings, in seconds: many clients may share one grammar."""

MAX_S = 1.0
"""The most CPU time that is left by it, in seconds, however many sequences begin at once."""

PER_CALL_S = 0.005
"""CPU time per call of a matcher that is given back to `BURST_S`, in seconds."""

SLOW_CALL_S = 0.002
"""CPU time from which a call of a matcher is slow, in seconds: its row then sits out steps."""


@dataclass(slots=True)
class Allowance:
    """The CPU time that the matchers of one grammar have left, in seconds.

    All sequences with the grammar share it. What the choices of one request bring has a bound.

    Attributes:
        was_slow: the last mask, or a call after it, took more than `SLOW_CALL_S`.
        slow_s: what such calls have taken, in seconds.
    """

    left_s: float = BURST_S
    was_slow: bool = False
    slow_s: float = 0.0

    @property
    def is_spent(self) -> bool:
        """Whether the grammar has taken too long."""
        return self.left_s <= 0

    @property
    def is_low(self) -> bool:
        """Whether half of what it may take at once is gone."""
        return self.left_s < BURST_S / 2

    def begin(self) -> None:
        """Counts a new sequence."""
        if not self.is_spent:
            self.left_s = min(MAX_S, self.left_s + CREDIT_S)

    def spend(self, seconds: float, reading_s: float = 0.0, calls: int = 1) -> None:
        """Counts calls of a matcher, which took `seconds` together. What is spent stays spent.

        Args:
            reading_s: the seconds in which the memory was read around them. They make the calls
                slow, so that other rows do not wait for them, but spend nothing: how long a reading
                takes depends on the engine, and no text may end for that.
        """
        if not self.is_spent:
            given_back = min(BURST_S, self.left_s + PER_CALL_S * calls)
            self.left_s = max(self.left_s, given_back) - seconds
        if seconds + reading_s > SLOW_CALL_S * calls:
            self.was_slow = True
            self.slow_s += seconds + reading_s

    def spend_on_mask(self, seconds: float, reading_s: float = 0.0) -> None:
        """Counts a mask: see `spend`."""
        self.was_slow = False
        self.spend(seconds, reading_s)
