"""Keeps an engine process alive: starts it, sees it die, replaces it, and gives up in the end.

Nothing here knows vLLM: what is supervised is a `Child`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from engine_adapter.config import RestartPolicy
from engine_adapter.errors import EngineDead, EngineError, EngineNotReady

log = structlog.get_logger(__name__)


class Child(Protocol):
    """An engine process, from its start to its end; it is never started twice."""

    @property
    def alive(self) -> bool:
        """Whether it has started and not died."""
        ...

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """Returns when it can serve. Cancelled, it leaves no process behind.

        Raises `EngineError`.
        """
        ...

    async def died(self) -> str:
        """Waits until it has died. How it did, as the end of "the engine process ..."."""
        ...

    async def stop(self) -> None:
        """Ends it, in any state it may be in."""
        ...


C = TypeVar("C", bound=Child)


@dataclass(frozen=True, slots=True)
class _Outage:
    """The time without a child.

    Attributes:
        reason: the end of "The engine process ...".
        until: when the next child should serve, by the monotonic clock; `None` if there is none.
    """

    reason: str
    until: float | None


class Supervisor(Generic[C]):
    """Owns the child that serves. Lives on the event loop.

    Args:
        create: makes a child, not yet started.
        adopt: brings a started child to where the one before it was; it serves after that.
        policy: when a dead one is replaced.
        on_restart: told of every attempt to replace one, and whether it succeeded.
    """

    def __init__(
        self,
        create: Callable[[], C],
        adopt: Callable[[C], Awaitable[None]],
        policy: RestartPolicy,
        on_restart: Callable[[bool], None],
    ) -> None:
        self._create = create
        self._adopt = adopt
        self._policy = policy
        self._on_restart = on_restart
        self._child: C | None = None
        self._outage: _Outage | None = None
        self._watching: asyncio.Task[None] | None = None
        # When replacements were begun, by the monotonic clock: those of the policy's window.
        self._attempts: deque[float] = deque()
        self._start_s = 0.0

    @property
    def child(self) -> C:
        """The one that serves. Raises `EngineDead`, or `EngineNotReady` outside of start..stop."""
        if failure := self.failure:
            raise failure
        if self._child is None:
            raise EngineNotReady("the engine is not running")
        return self._child

    @property
    def failure(self) -> EngineDead | None:
        """Why there is nothing that serves, and when there should be; `None` while all is well."""
        outage = self._outage
        if outage is None:
            if self._child is None or self._child.alive:
                return None
            # It died in this very iteration of the loop; `_watch` has not been told.
            outage = self._outage_from("has died")
        if outage.until is None:
            end = "it is not replaced any more, and the server must be restarted"
            return EngineDead(f"The engine process {outage.reason}; {end}.")
        left_s = max(0.0, outage.until - time.monotonic())
        return EngineDead(f"The engine process {outage.reason}; it is being replaced.", left_s)

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """Starts the first child. A failure is the caller's: nothing is tried again."""
        self._child = await self._begin(on_progress)
        self._watching = asyncio.create_task(self._watch(), name="engine-supervisor")

    async def stop(self) -> None:
        """Ends the child, or the attempt to replace it. Safe to call twice."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._outage = None
        await self._dispose()

    async def _begin(self, on_progress: Callable[[str], None]) -> C:
        began = time.monotonic()
        child = self._create()
        try:
            await child.start(on_progress)
            await self._adopt(child)
        except BaseException:
            await child.stop()
            raise
        self._start_s = time.monotonic() - began
        return child

    async def _watch(self) -> None:
        try:
            while self._child is not None:
                reason = await self._child.died()
                self._say_what_comes("engine_died", reason)
                await self._dispose()
                while self._outage is not None and self._outage.until is not None:
                    await self._replace(self._outage.reason)
        except Exception as error:
            # Without it the server would say for ever that a replacement is on its way.
            self._outage = _Outage("has died", None)
            log.error("engine_supervisor_failed", exc_info=error)

    async def _replace(self, reason: str) -> None:
        """Waits for its time, and makes one attempt."""
        await asyncio.sleep(self._delay_s())
        began = time.monotonic()
        self._attempts.append(began)
        try:
            self._child = await self._begin(lambda stage: log.info("engine_loading", stage=stage))
        except Exception as error:
            self._on_restart(False)
            unexpected = None if isinstance(error, EngineError) else error
            self._say_what_comes("engine_restart_failed", reason, str(error), unexpected)
        else:
            self._outage = None
            self._on_restart(True)
            log.warning("engine_restarted", took_s=round(time.monotonic() - began, 1))

    def _say_what_comes(
        self, event: str, reason: str, error: str | None = None, unexpected: Exception | None = None
    ) -> None:
        """Begins, or goes on with, an outage; the one log line about it."""
        self._outage = self._outage_from(reason)
        policy = self._policy
        if self._outage.until is None:
            then = (
                f"given up: it was replaced {len(self._attempts)} times within "
                f"{policy.window_s:g} s, and engine_restart_limit is {policy.limit}; find the "
                "cause in the lines above, then restart the server"
            )
        else:
            then = (
                f"replaced in {self._delay_s():g} s, "
                f"attempt {len(self._attempts) + 1} of {policy.limit} within {policy.window_s:g} s"
            )
        cause = f"the engine process {reason}" if error is None else error
        log.error(event, cause=cause, then=then, exc_info=unexpected)

    def _outage_from(self, reason: str) -> _Outage:
        """An outage that begins, or goes on, now."""
        while self._attempts and self._attempts[0] < time.monotonic() - self._policy.window_s:
            self._attempts.popleft()
        if len(self._attempts) >= self._policy.limit:
            return _Outage(reason, None)
        return _Outage(reason, time.monotonic() + self._delay_s() + self._start_s)

    def _delay_s(self) -> float:
        """What comes before the next attempt: it doubles with each one of the window."""
        doublings = min(len(self._attempts), 32)
        return min(self._policy.first_delay_s * 2**doublings, self._policy.max_delay_s)

    async def _dispose(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.stop()
