"""Starts an engine process and replaces it when it dies, until the restart policy's limit.

Nothing here knows vLLM: the supervised process is a `Child`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from engine_adapter.seam.config import RestartPolicy
from engine_adapter.seam.errors import EngineDead, EngineError, EngineNotReady, EngineStartError

log = structlog.get_logger(__name__)


class Child(Protocol):
    """An engine process. It is started once."""

    @property
    def alive(self) -> bool:
        """Whether it has started and has not died."""
        ...

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """Returns when it can serve. A cancelled start leaves no process.

        Raises `EngineError`.
        """
        ...

    async def died(self) -> str:
        """Waits for its death. Returns the cause, to follow the words "the engine process"."""
        ...

    async def stop(self) -> None:
        """Ends it, in any state."""
        ...


C = TypeVar("C", bound=Child)


@dataclass(frozen=True, slots=True)
class _Outage:
    """The time without a child.

    Attributes:
        reason: the cause, to follow the words "The engine process".
        until: when the next child should serve, in seconds of the monotonic clock; `None` if the
            child is not replaced.
    """

    reason: str
    until: float | None


class Supervisor(Generic[C]):
    """Owns the child that serves. Lives on the event loop.

    Args:
        create: makes a child, not yet started.
        adopt: gives a started child the state of the child before it; the child serves after that.
        policy: when a dead child is replaced.
        on_restart: called after every attempt to replace a child: whether it succeeded.
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
        self._watch_task: asyncio.Task[None] | None = None
        # The start times of the replacements in the policy's window, by the monotonic clock.
        self._attempts: deque[float] = deque()
        self._start_s = 0.0

    @property
    def child(self) -> C:
        """The child that serves.

        Raises:
            EngineDead: it is dead.
            EngineNotReady: before `start` has returned, and after `stop`.
        """
        if failure := self.failure:
            raise failure
        if self._child is None:
            raise EngineNotReady("the engine is not running")
        return self._child

    @property
    def failure(self) -> EngineDead | None:
        """Why no child serves, and when one should serve again; `None` while one serves."""
        outage = self._outage
        if outage is None:
            if self._child is None or self._child.alive:
                return None
            # It died a moment ago, and `_watch` has not run since.
            outage = self._outage_from_now("has died")
        if outage.until is None:
            end = "it is no longer replaced, and the server must be restarted"
            return EngineDead(f"The engine process {outage.reason}; {end}.")
        left_s = max(0.0, outage.until - time.monotonic())
        return EngineDead(f"The engine process {outage.reason}; it is being replaced.", left_s)

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """Starts the first child. Raises the child's `EngineError`; this start is not repeated."""
        self._child = await self._start_child(on_progress)
        self._watch_task = asyncio.create_task(self._watch(), name="engine-supervisor")

    async def stop(self) -> None:
        """Ends the child, or the attempt to replace it. Safe to call twice."""
        task, self._watch_task = self._watch_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._outage = None
        await self._stop_child()

    async def _start_child(self, on_progress: Callable[[str], None]) -> C:
        began = time.monotonic()
        child = self._create()
        try:
            await child.start(on_progress)
            try:
                await self._adopt(child)
            except EngineDead as error:
                reason = await child.died()
                raise EngineStartError(f"The engine process {reason}, before it served.") from error
        except BaseException:
            await child.stop()
            raise
        self._start_s = time.monotonic() - began
        return child

    async def _watch(self) -> None:
        try:
            while self._child is not None:
                reason = await self._child.died()
                self._begin_outage("engine_died", reason)
                await self._stop_child()
                while self._outage is not None and self._outage.until is not None:
                    await self._replace(self._outage.reason)
        except Exception as error:
            # The server would otherwise announce a replacement that never comes.
            self._outage = _Outage("has died", None)
            log.error("engine_supervisor_failed", exc_info=error)

    async def _replace(self, reason: str) -> None:
        """Waits for the delay, then makes one attempt."""
        await asyncio.sleep(self._delay_s())
        began = time.monotonic()
        self._attempts.append(began)
        try:
            self._child = await self._start_child(
                lambda stage: log.info("engine_loading", stage=stage)
            )
        except Exception as error:
            self._on_restart(False)
            unexpected = None if isinstance(error, EngineError) else error
            self._begin_outage("engine_restart_failed", reason, str(error), unexpected)
        else:
            self._outage = None
            self._on_restart(True)
            log.warning("engine_restarted", took_s=round(time.monotonic() - began, 1))

    def _begin_outage(
        self, event: str, reason: str, error: str | None = None, unexpected: Exception | None = None
    ) -> None:
        """Begins or prolongs an outage, and logs its cause and what follows."""
        self._outage = self._outage_from_now(reason)
        policy = self._policy
        if self._outage.until is None:
            consequence = (
                f"given up: it was replaced {len(self._attempts)} times within "
                f"{policy.window_s:g} s, and --engine-restart-limit is {policy.limit}; find the "
                "cause in the lines above, then restart the server"
            )
        else:
            consequence = (
                f"replaced in {self._delay_s():g} s, "
                f"attempt {len(self._attempts) + 1} of {policy.limit} within {policy.window_s:g} s"
            )
        cause = f"the engine process {reason}" if error is None else error
        log.error(event, cause=cause, then=consequence, exc_info=unexpected)

    def _outage_from_now(self, reason: str) -> _Outage:
        """An outage whose next attempt is planned from now."""
        while self._attempts and self._attempts[0] < time.monotonic() - self._policy.window_s:
            self._attempts.popleft()
        if len(self._attempts) >= self._policy.limit:
            return _Outage(reason, None)
        return _Outage(reason, time.monotonic() + self._delay_s() + self._start_s)

    def _delay_s(self) -> float:
        """Seconds before the next attempt: doubled by each attempt of the window."""
        doublings = min(len(self._attempts), 32)
        return min(self._policy.first_delay_s * 2**doublings, self._policy.max_delay_s)

    async def _stop_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.stop()
