"""One replica's part in the fleet: it joins, runs the calls that it gets, and answers them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog

from server.fleet.local import LocalReplica
from server.fleet.member import Member
from server.fleet.replica import FleetReport, Order, ReplicaRefused, ReplicaState
from server.ray_serve.remote_replica import CANCEL, Answer, Call

RETRY_S = 0.5
"""Seconds until a replica tries again to reach a fleet that does not answer."""

TAKE_S = 30.0
"""Seconds until a replica tries again to take what it could not."""

_CHANGES = ("prepare", "commit", "rollback", "adopt")
"""The calls that change what a replica has."""

INTERNAL = "internal_error"
"""The code of a refusal that is a fault of the server, not of the order."""

log = structlog.get_logger(__name__)


class FleetLost(Exception):
    """The fleet's process does not answer; its next one knows nothing."""


class FleetOfReplica(Protocol):
    """The fleet, as one replica reaches it. Every method raises `FleetLost`."""

    async def join(self, state: ReplicaState, revision: int) -> ReplicaState:
        """See `Fleet.join`."""
        ...

    async def leave(self) -> None:
        """See `Fleet.leave`."""
        ...

    async def collect(self) -> list[Call] | None:
        """See `Fleet.collect`."""
        ...

    async def answer(self, answer: Answer) -> None:
        """See `Fleet.answer`."""
        ...

    async def declare(self, revision: int, order: Order) -> FleetReport | None:
        """See `Fleet.declare`."""
        ...


class Attendance:
    """A replica's attendance in its fleet, from `begin` to `end`.

    Args:
        metrics: what the replica's own `/metrics` says.

    Attributes:
        revision: of the last `user_config` that this replica knows to be applied.
    """

    def __init__(
        self,
        name: str,
        member: Member,
        fleet: FleetOfReplica,
        metrics: Callable[[], Awaitable[str]],
    ) -> None:
        self._member = member
        self._replica = LocalReplica(name, member)
        self._fleet = fleet
        self._metrics = metrics
        self._running: dict[str, asyncio.Task[None]] = {}
        # What the fleet has told it to take, as long as it could not.
        self._owed: ReplicaState | None = None
        self._retry_at = 0.0
        self._attending: asyncio.Task[None] | None = None
        self.revision = 0

    async def begin(self) -> None:
        """Joins, takes what is in force, and answers calls from then on.

        Raises what `Member.adopt` raises: the fleet's method is not possible here.
        """
        while True:
            try:
                await self._join()
                break
            except FleetLost:
                await asyncio.sleep(RETRY_S)
        self._attending = asyncio.create_task(self._attend(), name="fleet-attendance")

    async def end(self) -> None:
        """Leaves the fleet. Safe to call without `begin`."""
        if self._attending is None:
            return
        self._attending.cancel()
        await asyncio.gather(self._attending, return_exceptions=True)
        try:
            await self._fleet.leave()
        except FleetLost:
            log.info("fleet_not_told")

    async def declare(self, revision: int, order: Order) -> FleetReport | None:
        """Brings a `user_config` to the fleet. Waits for a fleet that answers: Serve says it once.

        Returns `None` if this revision, or a later one, was applied before.
        """
        while revision > self.revision:
            try:
                report = await self._fleet.declare(revision, order)
            except FleetLost as error:
                log.warning("user_config_waits", revision=revision, reason=str(error))
                await asyncio.sleep(RETRY_S)
            else:
                self.revision = revision
                return report
        return None

    async def _join(self) -> None:
        await self._take(await self._fleet.join(self._member.state(), self.revision))

    async def _take(self, told: ReplicaState) -> bool:
        self._owed, self._retry_at = told, 0.0
        return await self._take_owed()

    async def _take_owed(self) -> bool:
        """Takes what the fleet has told it, unless it has something later; see `Member.adopt`."""
        owed = self._owed
        if owed is None or self._member.state().is_switching:
            return False
        self._retry_at = time.monotonic() + TAKE_S
        taken = await self._member.adopt(owed)
        self._owed = None
        return taken

    async def _attend(self) -> None:
        while True:
            try:
                calls = await self._fleet.collect()
                if calls is None:
                    await self._end_calls()
                    await self._join()
                    continue
                for call in calls:
                    self._begin_call(call)
                # Not only when no call came: a scrape of the metrics is a call too.
                if time.monotonic() >= self._retry_at:
                    await self._take_owed()
            except FleetLost:
                log.warning("fleet_lost", then="joins its next process")
                await self._end_calls()
                await asyncio.sleep(RETRY_S)
            except Exception:
                # The fleet's method may be impossible here for a time, as while a proposer is
                # quarantined: it keeps its own until then, says so, and tries again.
                log.exception("fleet_not_followed")
                await asyncio.sleep(RETRY_S)

    def _begin_call(self, call: Call) -> None:
        if call.method == CANCEL:
            if (running := self._running.get(call.arguments[0])) is not None:
                running.cancel()
            return
        task = asyncio.create_task(self._run(call), name=call.method)
        self._running[call.id] = task
        task.add_done_callback(lambda _: self._running.pop(call.id, None))

    async def _run(self, call: Call) -> None:
        try:
            answer = Answer(call.id, await self._result(call.method, call.arguments))
        except ReplicaRefused as error:
            answer = Answer(call.id, refusal=(str(error), error.code))
        except Exception as error:
            log.exception("fleet_call_failed", method=call.method)
            answer = Answer(call.id, refusal=(str(error) or type(error).__name__, INTERNAL))
        try:
            await self._fleet.answer(answer)
        except FleetLost:
            log.info("fleet_lost_before_the_answer", method=call.method)

    async def _result(self, method: str, arguments: tuple[Any, ...]) -> Any:
        match method:
            case "prepare":
                return await self._replica.prepare(*arguments)
            case "commit":
                return await self._replica.commit(*arguments)
            case "rollback":
                return await self._replica.rollback(*arguments)
            case "state":
                return await self._replica.state()
            case "adopt":
                return await self._take(*arguments)
            case "metrics":
                return await self._metrics()
            case _:
                raise ReplicaRefused(f"a replica has no method {method!r}", INTERNAL)

    async def _end_calls(self) -> None:
        """Ends what a process of the fleet that is gone has begun, a drain too.

        It takes as long as the engine does: the fleet's next process takes what this replica has
        when it joins for what it has later, and makes its switches without it until then.
        """
        while True:
            try:
                await self._member.end_switch()
            except Exception:
                log.exception("fleet_switch_not_ended")
            changing = [t for t in self._running.values() if t.get_name() in _CHANGES]
            if not changing:
                return
            # One of them may only now reserve this replica.
            await asyncio.wait(changing)
