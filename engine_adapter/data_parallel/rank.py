"""One engine among several, and the changes that it has missed while it was dead."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import structlog

from engine_adapter.seam.errors import EngineDead, LoraRefused, ProposerRefused
from engine_adapter.seam.interface import Engine

log = structlog.get_logger(__name__)

RETRY_S = 5.0
"""Seconds until an engine is asked once more to take a change that it has refused."""

_HAS_IT = ("proposer_exists", "proposer_not_found", "adapter_exists", "adapter_not_found")
"""Codes of refusals by an engine that took the change before it died."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A change of every engine.

    Attributes:
        what: for the log.
        apply: makes it at one engine.
        undo: takes it back at an engine that has taken it.
        topic: an engine that has missed several changes of a topic gets only the last one; `None`
            if each is needed.
        needs_all: an engine that dies in the change makes it fail. Otherwise it has missed it.
    """

    what: str
    apply: Callable[[Engine], Awaitable[T]]
    undo: Callable[[Engine], Awaitable[object]]
    topic: str | None = None
    needs_all: bool = False


@dataclass(eq=False, slots=True)
class DataParallelRank:
    """One engine among several: a rank of data parallelism, as vLLM says. Lives on the event loop.

    Attributes:
        missed: changes that it has to take, in order, before it serves.
    """

    index: int
    engine: Engine
    missed: list[Change[Any]] = field(default_factory=list)
    _catching_up: "asyncio.Task[None] | None" = None

    @property
    def failure(self) -> EngineDead | None:
        """Why it does not serve, and when it should; `None` while it serves."""
        failure = self.engine.failure
        if failure is None and self.missed:
            change_name = self.missed[0].what
            return EngineDead(
                f"The engine is back and takes a change that it missed: {change_name}.", 1.0
            )
        return failure

    @property
    def comes_back(self) -> bool:
        """Whether it serves, or will."""
        failure = self.failure
        return failure is None or failure.retry_after_s is not None

    def miss(self, change: Change[Any]) -> None:
        """Notes a change; the engine takes it at once if it lives, or when it is back."""
        if change.topic is not None:
            self.missed[:] = [other for other in self.missed if other.topic != change.topic]
        self.missed.append(change)
        self.catch_up()

    def catch_up(self) -> None:
        """Begins to give a live engine what it has missed."""
        if self.missed and self._lives() and self._catching_up is None:
            self._catching_up = asyncio.create_task(self._catch_up(), name="engine-catch-up")
            self._catching_up.add_done_callback(self._caught_up)

    async def stop(self) -> None:
        """Stops the engine, and gives it nothing more."""
        self.missed.clear()
        if (task := self._catching_up) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.engine.stop()

    def _lives(self) -> bool:
        return self.engine.failure is None

    def _caught_up(self, _: object) -> None:
        self._catching_up = None
        self.catch_up()  # it may have missed another change since

    async def _catch_up(self) -> None:
        while self.missed and self._lives():
            change = self.missed[0]
            try:
                await change.apply(self.engine)
            except Exception as error:
                if not self._lives():
                    return
                has_it = isinstance(error, ProposerRefused | LoraRefused) and error.code in _HAS_IT
                if not has_it:
                    log.error(
                        "engine_behind", engine=self.index, missing=change.what, cause=str(error)
                    )
                    await asyncio.sleep(RETRY_S)
                    continue
            if change in self.missed:  # a later one may have replaced it
                self.missed.remove(change)


def failure_of(ranks: Sequence[DataParallelRank]) -> EngineDead | None:
    """Why no engine serves, and when the first one should; `None` while one serves."""
    soonest: tuple[float, DataParallelRank, EngineDead] | None = None
    for rank in ranks:
        failure = rank.failure
        if failure is None:
            return None
        wait_s = float("inf") if failure.retry_after_s is None else failure.retry_after_s
        if soonest is None or wait_s < soonest[0]:
            soonest = wait_s, rank, failure
    assert soonest is not None
    _, rank, failure = soonest
    message = f"None of the {len(ranks)} engines serves. Engine {rank.index}: {failure}"
    return EngineDead(message, failure.retry_after_s)
