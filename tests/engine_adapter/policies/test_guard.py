"""The guard: losses are bounded, it backs off, comes back, and tells a slow machine from a loss."""

from engine_adapter.policies.contract import StepResult
from engine_adapter.policies.guard import FIRST_BACKOFF, MAX_BACKOFF, Guard, GuardParameters

LIMIT, WINDOW = 0.02, 256


class Steps:
    """Steps under a guard: drafting steps unless it suspends; plain steps otherwise.

    Attributes:
        lost: tokens behind plain decoding, in all.
    """

    def __init__(self) -> None:
        self.guard = Guard(GuardParameters(LIMIT, WINDOW))
        self.lost = 0.0
        self.suspended: list[bool] = []

    def run(self, steps: int, gain: float, machine: float = 1.0) -> None:
        """`gain`: tokens of a drafting step over those of plain decoding in its time."""
        for _ in range(steps):
            drafting = not self.guard.suspended
            self.suspended.append(not drafting)
            slowness = (1.5 if drafting else 1.0) * machine
            plain = slowness / machine
            emitted = round(1000 * gain * plain) if drafting else 1000
            self.lost += 1000 * plain - emitted
            self.guard.observe(StepResult(emitted, 1000, slowness * 0.03, slowness, drafting))

    def pauses(self) -> list[int]:
        """The lengths of the suspensions, checks included."""
        text = "".join("s" if one else " " for one in self.suspended)
        return [len(part) for part in text.split()]


def test_a_policy_that_gains_is_never_suspended() -> None:
    steps = Steps()
    steps.run(2000, 1.3)
    assert steps.guard.suspensions == 0
    assert not any(steps.suspended)


def test_a_policy_that_loses_within_the_limit_is_not_suspended() -> None:
    steps = Steps()
    steps.run(2000, 1 - LIMIT / 2)
    assert steps.guard.suspensions == 0


def test_what_a_long_run_of_losses_costs_is_bounded() -> None:
    steps = Steps()
    steps.run(10_000, 0.5)
    assert steps.lost / (10_000 * 1000) <= LIMIT
    assert steps.guard.suspensions >= 2


def test_each_pause_that_follows_soon_is_twice_as_long_up_to_a_limit() -> None:
    steps = Steps()
    steps.run(12_000, 0.5)
    pauses = steps.pauses()
    rests = [pause - (pauses[0] - FIRST_BACKOFF) for pause in pauses[:-1]]
    assert rests[:4] == [FIRST_BACKOFF * 2**i for i in range(4)]
    assert max(rests) == MAX_BACKOFF


def test_it_comes_back_when_the_traffic_gains_again() -> None:
    steps = Steps()
    steps.run(3000, 0.5)
    steps.run(MAX_BACKOFF + 100, 1.5)
    assert not steps.guard.suspended


def test_after_a_gain_the_back_off_begins_with_the_shortest_again() -> None:
    steps = Steps()
    steps.run(3000, 0.5)
    steps.run(MAX_BACKOFF + 600, 1.5)
    before = len(steps.suspended)
    steps.run(800, 0.3)
    steps.suspended = steps.suspended[before:]
    assert FIRST_BACKOFF <= steps.pauses()[0] <= FIRST_BACKOFF + 10


def test_a_slower_machine_is_not_a_loss() -> None:
    steps = Steps()
    steps.run(500, 1.2)
    steps.run(500, 1.2, machine=3.0)
    assert steps.guard.suspensions == 0
