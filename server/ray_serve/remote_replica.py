"""A replica of the fleet, reached through a mailbox that it empties.

Ray Serve gives no way to call one replica, or to learn of one that starts. So each replica joins
the fleet itself, waits for calls, and answers them.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from server.control.records import SwitchResult
from server.fleet.replica import (
    Order,
    Prepared,
    ReplicaRefused,
    ReplicaState,
    ReplicaUnreachable,
)

LOOK_S = 0.5
"""Seconds between two looks whether a replica that has not answered is alive."""

CANCEL = "cancel"
"""The method of a call that ends an earlier one; its argument is that call's id."""


@dataclass(frozen=True, slots=True)
class Call:
    """A method of `server.fleet.replica.Replica` or of `Member` for a replica to run.

    Attributes:
        id: no other call has it, also of an earlier process of the fleet: its answer may be late.
    """

    method: str
    arguments: tuple[Any, ...]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned, or why the replica refused: a message and a code."""

    id: str
    value: Any = None
    refusal: tuple[str, str | None] | None = None


class RemoteReplica:
    """See `server.fleet.replica.Replica`.

    Args:
        name: how reports name it.
        is_alive: whether its process is known to live; it may be slow.

    Attributes:
        is_gone: its process has ended, or it has left.
    """

    def __init__(self, name: str, is_alive: Callable[[], Awaitable[bool]]) -> None:
        self._name = name
        self._is_alive = is_alive
        self._mail: asyncio.Queue[Call] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._gone = "its process has ended"
        self.is_gone = False

    @property
    def name(self) -> str:
        """See `Replica.name`."""
        return self._name

    async def prepare(self, switch_id: str, order: Order, lease_s: float) -> Prepared:
        """See `Replica.prepare`."""
        prepared: Prepared = await self._call("prepare", switch_id, order, lease_s)
        return prepared

    async def commit(self, switch_id: str, generation: int) -> SwitchResult:
        """See `Replica.commit`."""
        result: SwitchResult = await self._call("commit", switch_id, generation)
        return result

    async def rollback(self, switch_id: str, generation: int | None) -> ReplicaState:
        """See `Replica.rollback`."""
        state: ReplicaState = await self._call("rollback", switch_id, generation)
        return state

    async def state(self) -> ReplicaState:
        """See `Replica.state`."""
        state: ReplicaState = await self._call("state")
        return state

    async def adopt(self, state: ReplicaState) -> bool:
        """See `Member.adopt`."""
        adopted: bool = await self._call("adopt", state)
        return adopted

    async def metrics(self) -> str:
        """What its own `/metrics` says."""
        text: str = await self._call("metrics")
        return text

    async def look(self) -> bool:
        """Whether it is alive. If it is not, `is_gone` is set."""
        self.is_gone = self.is_gone or not await self._is_alive()
        return not self.is_gone

    def leave(self) -> None:
        """Notes that it has left the fleet: it answers no call any more, not even those begun."""
        self.is_gone = True
        self._gone = "it has left the fleet"
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(ReplicaUnreachable(self._gone))

    async def collect(self, wait_s: float) -> list[Call]:
        """The calls that it has not got yet; none after `wait_s` seconds without one."""
        try:
            async with asyncio.timeout(wait_s):
                calls = [await self._mail.get()]
        except TimeoutError:
            return []
        while not self._mail.empty():
            calls.append(self._mail.get_nowait())
        return calls

    def answer(self, answer: Answer) -> None:
        """Takes an answer. It is dropped if its call has been given up."""
        waiting = self._answers.get(answer.id)
        if waiting is None or waiting.done():
            return
        if answer.refusal is None:
            waiting.set_result(answer.value)
        else:
            waiting.set_exception(ReplicaRefused(*answer.refusal))

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Raises `ReplicaRefused`, and `ReplicaUnreachable` once its process has ended."""
        if self.is_gone:
            raise ReplicaUnreachable(self._gone)
        call = Call(method, arguments)
        answer = self._answers[call.id] = asyncio.get_running_loop().create_future()
        self._mail.put_nowait(call)
        try:
            while True:
                await asyncio.wait((answer,), timeout=LOOK_S)
                if answer.done():
                    return answer.result()
                if not await self.look():
                    raise ReplicaUnreachable(self._gone)
        finally:
            del self._answers[call.id]
            if not answer.done():
                answer.cancel()
                self._mail.put_nowait(Call(CANCEL, (call.id,)))
