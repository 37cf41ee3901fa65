"""One requested switch, from its call to its record."""

import time
from dataclasses import dataclass

from engine_adapter.seam.types import SpecMethod
from server.control.records import Intent, SpecMethodBody, SwitchRecord
from server.control.types import Caller, FleetRank, OnTimeout, SwitchMode, SwitchOutcome

SWITCH = "switch_spec_method"
"""What the audit calls a switch."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A requested switch.

    Attributes:
        timeout_s, on_timeout: a drain's limit, and what it does then.
        when: Unix time in seconds.
        start_s: the same by `time.perf_counter`.
        moves: running requests change to the method too.
        aborted: how many requests its drain ended.
        fleet: the rank of the fleet's state that it belongs to, if it does.
    """

    caller: Caller
    method: SpecMethod
    previous: SpecMethod
    mode: SwitchMode
    timeout_s: float
    on_timeout: OnTimeout
    reason: str | None
    when: float
    start_s: float
    moves: bool
    aborted: int = 0
    fleet: FleetRank | None = None

    @property
    def took_ms(self) -> float:
        """Milliseconds from the call until now."""
        return round((time.perf_counter() - self.start_s) * 1e3, 3)

    def intent(self) -> Intent:
        """What the audit has of it before it begins."""
        change = {
            "spec_method": self.method.proposer,
            "num_speculative_tokens": self.method.num_speculative_tokens,
            "mode": self.mode,
        }
        caller = self.caller
        return Intent(self.when, caller.who, caller.peer, SWITCH, change, self.reason)

    def record(
        self,
        outcome: SwitchOutcome,
        error: BaseException | None,
        epoch: int | None,
        in_flight: int,
    ) -> SwitchRecord:
        """The record of its end, which is now."""
        return SwitchRecord(
            when=self.when,
            who=self.caller.who,
            peer=self.caller.peer,
            what=SWITCH,
            previous=SpecMethodBody.from_method(self.previous),
            to=SpecMethodBody.from_method(self.method),
            mode=self.mode,
            reason=self.reason,
            outcome=outcome,
            error=None if error is None else str(error) or type(error).__name__,
            generation=epoch,
            fleet_generation=None if self.fleet is None else self.fleet.generation,
            in_flight=in_flight,
            aborted=self.aborted,
            took_ms=self.took_ms,
        )
