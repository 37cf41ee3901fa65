"""The fleet: its replicas, what is in force, and its switches, one at a time.

It lives in one process, on its event loop, and needs no Ray. It holds nothing that its replicas do
not have: a new one learns from the replicas that join it, of which the one with the highest fleet
generation has what is in force.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from server.fleet.coordinator import CALL_S, switch_fleet
from server.fleet.replica import (
    FleetOutcome,
    FleetReport,
    Order,
    ReplicaRefused,
    ReplicaState,
    ReplicaUnreachable,
)
from server.ray_serve.remote_replica import Answer, Call, RemoteReplica

COLLECT_S = 30.0
"""How long a replica waits for calls before it asks again, in seconds."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The fleet as it is.

    Attributes:
        in_force: the state with the highest generation; `None` before a replica has joined.
        replicas: name -> its state; `None` if it does not answer.
        revision: the highest one of a `user_config` that was applied; 0 before the first.
        is_switching: a switch runs, or waits for its turn.
    """

    in_force: ReplicaState | None
    replicas: dict[str, ReplicaState | None]
    revision: int
    is_switching: bool


class Fleet:
    """All replicas of one deployment.

    Args:
        is_alive: whether the process of an actor lives, by the actor's name.
        rejoin_s: how long its first switch waits, in seconds: replicas of an earlier process have
            joined again by then, and have told the last `user_config` that they know.
    """

    def __init__(
        self, is_alive: Callable[[str], Awaitable[bool]], *, rejoin_s: float = 0.0
    ) -> None:
        self._is_alive = is_alive
        self._replicas: dict[str, RemoteReplica] = {}
        self._in_force: ReplicaState | None = None
        self._has_begun = asyncio.Event()
        self._revision = 0
        # Held while the method changes, so that no replica joins in the middle of it.
        self._changing = asyncio.Lock()
        # Those that run or wait for their turn.
        self._switches = 0
        self._ready_at = time.monotonic() + rejoin_s
        # Whether `_in_force` is what the last switch has left: its caller may have cancelled it.
        self._is_settled = True
        # Whether `_in_force` comes from a switch of this process.
        self._has_switched = False

    @property
    def num_replicas(self) -> int:
        """How many have joined and are not known to be gone."""
        return len(self._replicas)

    async def join(self, name: str, actor: str, state: ReplicaState, revision: int) -> ReplicaState:
        """Takes a replica in, after the switch that runs. Returns what it must adopt.

        Every later switch reaches it: one that adopts nothing older than what it has can serve.
        One that comes back after a switch of this process may have a number of an earlier process
        that is as high. It has missed the switch, so the fleet takes a number above both.

        Args:
            actor: the name of its actor.
            state: what it has.
            revision: of the last `user_config` that it knows to be applied.
        """
        async with self._changing:
            await self._settle()
            self._has_begun.set()
            self._replicas[name] = RemoteReplica(name, lambda: self._is_alive(actor))
            self._revision = max(self._revision, revision)
            known = self._in_force
            if known is None:
                self._in_force = known = state
            elif not self._has_switched and state.fleet_generation > known.fleet_generation:
                self._in_force = known = state
                await self._spread(known, besides=name)
            elif self._has_switched and _rivals(state, known):
                self._in_force = known = replace(known, fleet_generation=state.fleet_generation + 1)
                await self._spread(known, besides=name)
            return known

    def leave(self, name: str) -> None:
        """Forgets a replica that stops; a switch that it has not made is made without it."""
        if (replica := self._replicas.pop(name, None)) is not None:
            replica.leave()

    async def collect(self, name: str) -> list[Call] | None:
        """The calls for a replica; `None` if it has not joined, which it should."""
        replica = self._replicas.get(name)
        return None if replica is None else await replica.collect(COLLECT_S)

    def answer(self, name: str, answer: Answer) -> None:
        """Takes a replica's answer."""
        if (replica := self._replicas.get(name)) is not None:
            replica.answer(answer)

    async def switch(self, order: Order) -> FleetReport | None:
        """Makes a switch at all replicas, or at none; `None` if another one runs."""
        return await self._alone(order, keeps_method=False)

    async def set_policies(self, order: Order) -> FleetReport | None:
        """Makes a switch to the method that is in force, with the policies of `order`."""
        return await self._alone(order, keeps_method=True)

    async def _alone(self, order: Order, *, keeps_method: bool) -> FleetReport | None:
        if self._switches:
            return None
        async with self._turn():
            return await self._switch(order, keeps_method=keeps_method)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Only one switch at a time, and the first when earlier replicas have joined again."""
        self._switches += 1
        try:
            if (wait_s := self._ready_at - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            async with self._changing:
                yield
        finally:
            self._switches -= 1

    async def declare(self, revision: int, order: Order) -> FleetReport | None:
        """Makes the switch of a `user_config`, once for all replicas that bring it.

        Waits for the first replica. Returns `None` if this revision, or a later one, has been here
        before.
        """
        if revision <= self._revision:
            return None
        await self._has_begun.wait()
        async with self._turn():
            if revision <= self._revision:
                return None
            report = await self._switch(order)
            # If its caller is gone before the end, the next replica that brings it declares it.
            self._revision = revision
            return report

    async def status(self) -> FleetStatus:
        """The fleet now; asks every replica."""
        await self._forget_gone()
        states = await self._states()
        return FleetStatus(self._in_force, states, self._revision, self._switches > 0)

    async def metrics(self) -> dict[str, str]:
        """Replica -> what its own `/metrics` says, of those that answer."""
        await self._forget_gone()
        names = list(self._replicas)
        texts = await asyncio.gather(*(_answered(self._replicas[n].metrics()) for n in names))
        return {name: text for name, text in zip(names, texts, strict=True) if text is not None}

    async def _switch(self, order: Order, *, keeps_method: bool = False) -> FleetReport:
        """Makes a switch; if a replica dies or leaves in it, again without that one."""
        while True:
            await self._forget_gone()
            await self._settle()
            if keeps_method and self._in_force is not None:
                order = _with_method(order, self._in_force)
            self._is_settled = False
            asked = tuple(self._replicas.values())
            report = await switch_fleet(asked, order, on_interrupt=_log_interrupted)
            log.info(
                "fleet_switch",
                outcome=report.outcome,
                error=report.error,
                unknown=report.unknown,
            )
            self._has_switched = self._has_switched or report.outcome is FleetOutcome.SWITCHED
            await self._settle()
            await self._forget_gone()
            # One that has left, or that a call of `status` has missed first, is forgotten already.
            is_one_gone = any(replica.is_gone for replica in asked)
            if report.outcome is FleetOutcome.SWITCHED or not (is_one_gone and self._replicas):
                return report

    async def _settle(self) -> None:
        """Notes what is in force after a switch, and heals replicas that it has left behind."""
        if self._is_settled:
            return
        states = [state for state in (await self._states()).values() if state is not None]
        if states:
            self._in_force = max(states, key=lambda state: state.fleet_generation)
            await self._spread(self._in_force)
        # While replicas are there and none answers, the method is not known: they are asked again.
        self._is_settled = bool(states) or not self._replicas

    async def _spread(self, state: ReplicaState, besides: str | None = None) -> None:
        """Gives every other replica `state`; one with a higher number keeps what it has."""
        others = [replica for name, replica in self._replicas.items() if name != besides]
        await asyncio.gather(*(_answered(replica.adopt(state)) for replica in others))

    async def _states(self) -> dict[str, ReplicaState | None]:
        replicas = dict(self._replicas)
        states = await asyncio.gather(*(_answered(r.state()) for r in replicas.values()))
        return dict(zip(replicas, states, strict=True))

    async def _forget_gone(self) -> None:
        """Forgets the replicas whose process has ended."""
        replicas = dict(self._replicas)
        alive = await asyncio.gather(*(replica.look() for replica in replicas.values()))
        for name, lives in zip(replicas, alive, strict=True):
            if not lives and self._replicas.get(name) is replicas[name]:
                del self._replicas[name]


def _rivals(state: ReplicaState, known: ReplicaState) -> bool:
    """Whether a replica would not take what is in force, although it has something else."""
    if state.fleet_generation == known.fleet_generation:
        return (state.active, state.policies) != (known.active, known.policies)
    return state.fleet_generation > known.fleet_generation


def _log_interrupted(report: FleetReport) -> None:
    log.warning(
        "fleet_switch_interrupted",
        outcome=report.outcome,
        error=report.error,
        unknown=report.unknown,
    )


def _with_method(order: Order, state: ReplicaState) -> Order:
    """The order with the method of `state`."""
    method = state.active
    return replace(
        order,
        speculative_model=method.spec_method,
        num_speculative_tokens=method.num_speculative_tokens or None,
    )


async def _answered(answer: Awaitable[T]) -> T | None:
    """A replica's answer; `None`, and a line in the log, if it has none."""
    try:
        async with asyncio.timeout(CALL_S):
            return await answer
    except (ReplicaRefused, ReplicaUnreachable, TimeoutError) as error:
        log.warning("replica_did_not_answer", error=str(error) or "no answer in time")
        return None
