"""The fake engine's lives: from a start or a restart to a death or a stop."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from engine_adapter.seam.errors import EngineDead

log = structlog.get_logger(__name__)


class Lifetime:
    """Runs the step loop, and runs it again `restart_s` seconds after its end.

    Args:
        run: the step loop. It never returns; what it raises is the cause of a death.
        end_all: ends every sequence with an error.
        on_restart: called when the engine serves again.
        restart_s: seconds from a death to the next life; 0 is never.

    Attributes:
        ended: set while it does not live.
        stopped: set by `stop`; there is no further life.
    """

    def __init__(
        self,
        run: Callable[[], Awaitable[None]],
        end_all: Callable[[Exception], None],
        on_restart: Callable[[bool], None],
        restart_s: float,
    ) -> None:
        self._run = run
        self._end_all = end_all
        self._on_restart = on_restart
        self._restart_s = restart_s
        self._steps: asyncio.Task[None] | None = None
        self._next: asyncio.TimerHandle | None = None
        self._reason = ""
        self._announced_s: float | None = None
        self._back_at: float | None = None
        self.ended = asyncio.Event()
        self.stopped = False

    @property
    def failure(self) -> EngineDead | None:
        """Why it is dead, and when it should serve again; `None` while it lives."""
        if not self._reason:
            return None
        message = f"The engine died: {self._reason}."
        if self._announced_s is None and self._back_at is not None:
            return EngineDead(message, max(0.0, self._back_at - time.monotonic()))
        return EngineDead(message, self._announced_s)

    def begin(self) -> None:
        """Begins a life, instead of one that a death has planned. Does nothing after `stop`."""
        if not self.stopped:
            if self._next is not None:
                self._next.cancel()
                self._next = self._back_at = None
            self._reason = ""
            self.ended.clear()
            self._steps = asyncio.create_task(self._live(), name="fake-engine")

    def die(self, reason: str, retry_after_s: float | None) -> None:
        """Ends a life. `retry_after_s` is announced; `None` announces what `restart_s` says."""
        if not self._reason:
            self._reason, self._announced_s = reason, retry_after_s
            self.ended.set()
            if self._restart_s:
                self._back_at = time.monotonic() + self._restart_s
                loop = asyncio.get_running_loop()
                self._next = loop.call_later(self._restart_s, self._restart)
            failure = self.failure
            assert failure is not None
            # What the failure announces shrinks with the clock; the line has the whole delay.
            after_s = (
                failure.retry_after_s if retry_after_s is not None else self._restart_s or None
            )
            given_up = "given up: fake_restart_s is 0; restart the server"
            consequence = given_up if after_s is None else f"replaced in {after_s:.3g} s"
            log.error("engine_died", cause=f"the fake engine: {reason}", then=consequence)
            self._end_all(failure)
        if self._steps is not None:
            self._steps.cancel()

    async def stop(self) -> None:
        """Ends the last life. Safe to call twice."""
        self.stopped = True
        self.ended.set()
        if self._next is not None:
            self._next.cancel()
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.cancel()
            await asyncio.wait([steps])
        self._end_all(EngineDead("The engine was stopped."))

    def _restart(self) -> None:
        self.begin()
        self._on_restart(True)
        log.warning("engine_restarted", took_s=0.0)

    async def _live(self) -> None:
        try:
            await self._run()
        except Exception as error:
            self.die(str(error), None)
