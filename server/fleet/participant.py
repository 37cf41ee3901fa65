"""One replica during a fleet switch, as the coordinator follows it."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

import structlog

from server.control.records import SwitchResult
from server.fleet.replica import (
    Prepared,
    Replica,
    ReplicaOutcome,
    ReplicaRefused,
    ReplicaReport,
    ReplicaState,
    ReplicaUnreachable,
)

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Participant:
    """A replica, what it has answered so far, and how its calls have failed.

    Attributes:
        prepared, result, after: its answers to the three calls.
        failure: why it has not done what it was told.
        is_lost: it is not known what it has, or it has something else.
        took_s: seconds of its calls together.
    """

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.prepared: Prepared | None = None
        self.result: SwitchResult | None = None
        self.failure: ReplicaRefused | ReplicaUnreachable | None = None
        self.after: ReplicaState | None = None
        self.is_lost = False
        self.took_s = 0.0

    async def call(self, answer: Awaitable[T], limit_s: float) -> T:
        """The answer. Raises `ReplicaRefused` or `ReplicaUnreachable`."""
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            raise ReplicaUnreachable(f"no answer within {limit_s:g} s") from None
        except (ReplicaRefused, ReplicaUnreachable):
            raise
        except Exception as error:
            # What the replica has done is not known. The others have to be told nevertheless.
            log.exception("fleet_call_failed", replica=self.replica.name)
            raise ReplicaUnreachable(f"{type(error).__name__}: {error}") from None
        finally:
            self.took_s += time.perf_counter() - begun

    def keeps_its_own(self, generation: int) -> bool:
        """Whether it kept a method or policies at a roll back; `failure` then says which.

        Args:
            generation: of the switch that was rolled back; a replica that has undone it has more.
        """
        prepared, after = self.prepared, self.after
        if prepared is None or after is None:
            return False
        kept = []
        if after.active != prepared.active:
            kept.append(f"was switched to {after.active.spec_method} meanwhile, and keeps it")
        if after.kept_policies:
            names = ", ".join(after.kept_policies)
            kept.append(f"got other parameters of {names} meanwhile, and keeps them")
        if after.fleet_generation == generation:
            kept.append(
                f"keeps what it got with generation {generation}: another switch has begun there"
            )
        if kept:
            self.failure = ReplicaRefused("; ".join(kept))
        return bool(kept)

    @property
    def has_refused_to_prepare(self) -> bool:
        """Whether it refuses the switch, so that it need not be told of its end."""
        return self.prepared is None and isinstance(self.failure, ReplicaRefused)

    def report(self, outcome: ReplicaOutcome) -> ReplicaReport:
        """What the switch did to it."""
        prepared, result, after = self.prepared, self.result, self.after
        previous = active = None if prepared is None else prepared.active
        generation = None if prepared is None else prepared.fleet_generation
        if after is not None:
            active, generation = after.active, after.fleet_generation
        elif result is not None:
            active, generation = result.active, result.fleet_generation
        if outcome == ReplicaOutcome.UNKNOWN:
            active = generation = None
        return ReplicaReport(
            self.replica.name,
            outcome,
            previous,
            active,
            generation,
            result.in_flight if outcome == ReplicaOutcome.SWITCHED and result else None,
            None if self.failure is None else str(self.failure),
            getattr(self.failure, "code", None),
            round(self.took_s * 1e3, 3),
            result.aborted if outcome == ReplicaOutcome.SWITCHED and result else None,
        )
