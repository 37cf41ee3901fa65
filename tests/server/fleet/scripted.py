"""A replica that does what a test says."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from server.control.records import SpecMethodBody, SwitchResult
from server.control.types import SwitchMode
from server.fleet.replica import (
    Order,
    Prepared,
    ReplicaRefused,
    ReplicaState,
    ReplicaUnreachable,
)

OLD, NEW = SpecMethodBody("draft", 4), SpecMethodBody("ngram", 5)


async def hang() -> None:
    """Does not end by itself."""
    await asyncio.Event().wait()


async def refuse() -> None:
    """Refuses as a replica does."""
    raise ReplicaRefused("no", "some_code")


async def be_gone() -> None:
    """Does not answer."""
    raise ReplicaUnreachable("gone")


Step = Callable[[], Awaitable[None]]


class ScriptedReplica:
    """Keeps the rules of a replica, and runs `on_...` before a call has an effect.

    Attributes:
        calls: the names of its calls, in order.
        kept: what it answers a roll back as the policies that it has left alone.
        after_commit: runs after a commit has had its effect, so that the answer may be lost.
    """

    def __init__(self, name: str, generation: int = 0, to: SpecMethodBody = NEW) -> None:
        self._name = name
        self.generation = generation
        self.method = OLD
        self.to = to
        self.reserved: str | None = None
        self.applied: str | None = None
        self.kept: tuple[str, ...] = ()
        self.calls: list[str] = []
        self.on_prepare: Step = _nothing
        self.on_commit: Step = _nothing
        self.after_commit: Step = _nothing
        self.on_rollback: Step = _nothing

    @property
    def name(self) -> str:
        return self._name

    async def prepare(self, switch_id: str, order: Order, lease_s: float) -> Prepared:
        self.calls.append("prepare")
        await self.on_prepare()
        self.reserved = switch_id
        return Prepared(self.generation, self.method, self.to)

    async def commit(self, switch_id: str, generation: int) -> SwitchResult:
        self.calls.append("commit")
        await self.on_commit()
        assert self.reserved == switch_id
        assert generation > self.generation
        self.reserved, self.applied = None, switch_id
        previous, self.method, self.generation = self.method, self.to, generation
        await self.after_commit()
        return SwitchResult(previous, self.to, SwitchMode.IMMEDIATE, 1, generation, 3, 0, 0.5)

    async def rollback(self, switch_id: str, generation: int | None) -> ReplicaState:
        self.calls.append("rollback")
        await self.on_rollback()
        if self.applied == switch_id:
            self.method = OLD
        self.reserved = None
        self.generation = generation or self.generation
        return replace(await self.state(), kept_policies=self.kept)

    async def state(self) -> ReplicaState:
        return ReplicaState(self.generation, self.method, self.reserved is not None)


async def _nothing() -> None:
    """Lets the call continue."""
