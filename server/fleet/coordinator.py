"""A switch over a whole fleet, in two phases: all replicas change their method, or none.

Two-phase commit, with a lease in place of a coordinator that may never fail: a reservation ends
by itself, and a replica takes a commit only while it is reserved, with a number above its own
(Gray and Lamport, "Consensus on Transaction Commit", 2006, section 3; Burrows, "The Chubby lock
service", 2006, section 2.4: sequencers).
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

from engine_adapter.cancellation import to_its_end
from server.control.types import ABORT_S, SwitchMode
from server.fleet.participant import Participant
from server.fleet.replica import (
    LEASE_S,
    FleetOutcome,
    FleetReport,
    Order,
    Prepared,
    Replica,
    ReplicaOutcome,
    ReplicaRefused,
    ReplicaUnreachable,
)

CALL_S = 10.0
"""How long a replica may take to answer, in seconds; a drain's time comes on top."""


async def switch_fleet(
    replicas: Sequence[Replica],
    order: Order,
    *,
    skip_unreachable: bool = False,
    lease_s: float = LEASE_S,
    call_s: float = CALL_S,
    on_interrupt: Callable[[FleetReport], None] | None = None,
) -> FleetReport:
    """Makes one switch at all replicas, or at none.

    If the caller is cancelled, or anything else fails here, the switch is rolled back first.

    Args:
        replicas: at least one; no two have the same name.
        skip_unreachable: switch the others, and report `partial`; otherwise a replica that does
            not answer counts as one that refuses.
        lease_s: must be longer than the slowest replica takes to prepare.
        call_s: how long a replica may take to answer, besides a drain.
        on_interrupt: gets the report of a switch that was rolled back because the caller was
            cancelled, or because of a failure here.
    """
    attempt = _FleetSwitch(replicas, order, skip_unreachable, lease_s, call_s)
    try:
        return await attempt.run()
    except BaseException as error:
        try:
            # Half of the replicas may have switched: a second cancellation does not stop this.
            await to_its_end(attempt.roll_back())
        finally:
            if on_interrupt is not None:
                on_interrupt(attempt.interrupted(error))
        raise


class _FleetSwitch:
    def __init__(
        self,
        replicas: Sequence[Replica],
        order: Order,
        skip_unreachable: bool,
        lease_s: float,
        call_s: float,
    ) -> None:
        self._all = [Participant(replica) for replica in replicas]
        self._order = order
        self._skips = skip_unreachable
        self._lease_s = lease_s
        self._call_s = call_s
        self._id = uuid.uuid4().hex
        self._generation: int | None = None
        self._begun = time.perf_counter()
        self._prepared_s = self._committed_s = 0.0

    async def run(self) -> FleetReport:
        await asyncio.gather(*map(self._prepare, self._all))
        self._prepared_s = time.perf_counter() - self._begun
        if (reason := self._refusal()) is not None:
            await self.roll_back()
            return self._report(FleetOutcome.UNCHANGED, reason)
        reserved = [one for one in self._all if one.prepared is not None]
        self._generation = 1 + max(_generation(one.prepared) for one in reserved)
        failed = await self._commit_all(reserved, self._generation)
        self._committed_s = time.perf_counter() - self._begun - self._prepared_s
        if failed is not None:
            await self.roll_back()
            return self._report(FleetOutcome.ROLLED_BACK, failed)
        await asyncio.gather(*(self._release(one) for one in self._all if one.prepared is None))
        return self._report(FleetOutcome.SWITCHED, None)

    def interrupted(self, error: BaseException) -> FleetReport:
        """The report of a switch that `error` has ended, after its roll back."""
        is_cancelled = isinstance(error, asyncio.CancelledError)
        reason = "interrupted" if is_cancelled else f"{type(error).__name__}: {error}"
        has_begun = self._generation is not None
        return self._report(
            FleetOutcome.ROLLED_BACK if has_begun else FleetOutcome.UNCHANGED, reason
        )

    async def _prepare(self, one: Participant) -> None:
        answer = one.replica.prepare(self._id, self._order, self._lease_s)
        try:
            one.prepared = await one.call(answer, self._call_s)
        except (ReplicaRefused, ReplicaUnreachable) as error:
            one.failure = error
            one.is_lost = isinstance(error, ReplicaUnreachable)

    def _refusal(self) -> str | None:
        """Why no replica is told to commit; `None` if they are."""
        for one in self._all:
            if one.failure is not None and not (one.is_lost and self._skips):
                return f"{one.replica.name}: {one.failure}"
        targets = {one.prepared.to: one.replica.name for one in self._all if one.prepared}
        if not targets:
            return "no replica answers"
        if len(targets) > 1:
            found = ", ".join(f"{to.spec_method} at {name}" for to, name in targets.items())
            return (
                f"the replicas mean different methods by {self._order.speculative_model}: {found}"
            )
        return None

    async def _commit_all(self, reserved: Sequence[Participant], generation: int) -> str | None:
        """Returns the first failure; the commits that have not ended by then are cancelled."""
        tasks = [asyncio.create_task(self._commit(one, generation)) for one in reserved]
        try:
            for task in asyncio.as_completed(tasks):
                if (failure := await task) is not None:
                    return failure
            return None
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.wait(tasks)

    async def _commit(self, one: Participant, generation: int) -> str | None:
        limit_s = self._call_s
        if self._order.mode == SwitchMode.DRAIN:
            limit_s += self._order.timeout_s + ABORT_S
        try:
            one.result = await one.call(one.replica.commit(self._id, generation), limit_s)
        except (ReplicaRefused, ReplicaUnreachable) as error:
            one.failure = error
            one.is_lost = isinstance(error, ReplicaUnreachable)
            if not (one.is_lost and self._skips):
                return f"{one.replica.name}: {error}"
        return None

    async def _release(self, one: Participant) -> None:
        """Ends the reservation of a replica whose answer is lost; it would refuse the next switch.

        It stays one that did not answer: `skip_unreachable` has switched the others.
        """
        # Otherwise its lease ends by itself.
        with suppress(ReplicaRefused, ReplicaUnreachable):
            await one.call(one.replica.rollback(self._id, None), self._call_s)

    async def roll_back(self) -> None:
        """Releases every replica, and restores those that have switched.

        All are told, also those that did not answer: they may have done what they were told. They
        take one number more than that of the switch, so that a replica that asks its peers
        meanwhile does not take the method that is given up.
        """
        generation = None if self._generation is None else self._generation + 1
        told = [one for one in self._all if not one.has_refused_to_prepare]
        await asyncio.gather(*(self._restore(one, generation) for one in told))

    async def _restore(self, one: Participant, generation: int | None) -> None:
        try:
            one.after = await one.call(one.replica.rollback(self._id, generation), self._call_s)
            switched = self._generation
            one.is_lost = switched is not None and one.keeps_its_own(switched)
        except (ReplicaRefused, ReplicaUnreachable) as error:
            one.failure = one.failure or error
            one.is_lost = True

    def _report(self, outcome: FleetOutcome, error: str | None) -> FleetReport:
        changed = self._generation is not None
        if changed and any(one.is_lost for one in self._all):
            outcome = FleetOutcome.PARTIAL
        generation = self._generation
        if generation is not None and error is not None:
            generation += 1
        return FleetReport(
            self._id,
            outcome,
            generation,
            error,
            tuple(one.report(self._outcome_of(one, error)) for one in self._all),
            round(self._prepared_s * 1e3, 3),
            round(self._committed_s * 1e3, 3),
            round((time.perf_counter() - self._begun) * 1e3, 3),
        )

    def _outcome_of(self, one: Participant, error: str | None) -> ReplicaOutcome:
        if one.is_lost:
            return ReplicaOutcome.UNKNOWN
        if isinstance(one.failure, ReplicaRefused):
            return ReplicaOutcome.REFUSED
        if error is None:
            return ReplicaOutcome.SWITCHED
        return ReplicaOutcome.UNCHANGED if self._generation is None else ReplicaOutcome.RESTORED


def _generation(prepared: Prepared | None) -> int:
    return 0 if prepared is None else prepared.fleet_generation
