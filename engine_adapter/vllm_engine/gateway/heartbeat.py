"""Notices an engine process that lives and does not answer.

It is asked again and again for an answer, which it gives between two steps. A long step is no
hang, so the process's use of the CPU is a second witness: a step that computes uses it, a stopped
or a blocked process does not.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from engine_adapter.seam.config import HangPolicy
from engine_adapter.vllm_engine.gateway.process_tree import Sight

TICK_S = 1.0
"""Seconds between two questions, and between two looks at a process that has not answered."""

_IDLE_SHARE = 0.02
"""The share of one core below which a process does nothing. Its other threads wake now and then."""


class Witness(Protocol):
    """Sees a process from outside."""

    def look(self) -> Sight | None:
        """The process and its children now; `None` if it cannot be seen, as when it has ended."""
        ...


class Heartbeat:
    """Asks a process for answers.

    Args:
        ask: returns when the process has answered. Its error ends the watch: the process is dead.
        witness: looks at the process while it does not answer.
        policy: how long it may be silent.
        tick_s: see `TICK_S`.
        clock: seconds of a monotonic clock.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        witness: Witness,
        policy: HangPolicy,
        tick_s: float = TICK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._witness = witness
        self._policy = policy
        self._tick_s = tick_s
        self._clock = clock

    async def hung(self) -> str:
        """Waits for a hang. Returns its description, to follow the words "the engine process".

        Raises what `ask` raises.
        """
        while True:
            asking = asyncio.ensure_future(self._ask())
            try:
                if reason := await self._silence(asking):
                    return reason
                await asking
            finally:
                asking.cancel()
            await asyncio.sleep(self._tick_s)

    async def _silence(self, asking: "asyncio.Future[object]") -> str:
        """Waits for the answer, at most as long as allowed; how it hangs, or nothing."""
        silent_s = idle_s = 0.0
        previous_sight = None
        while True:
            began = self._clock()
            await asyncio.wait((asking,), timeout=self._tick_s)
            if asking.done():
                return ""
            # A gateway that stood still itself has not listened for that long.
            listened_s = min(self._clock() - began, 2 * self._tick_s)
            silent_s += listened_s
            # It reads a file of every process of the machine.
            sight = await asyncio.to_thread(self._witness.look)
            idle_s = idle_s + listened_s if _is_idle(previous_sight, sight, listened_s) else 0.0
            previous_sight = sight
            if asking.done():  # it has answered during the look
                return ""
            if self._policy.idle_s and idle_s >= self._policy.idle_s:
                how = "was stopped" if sight and sight.stopped else "used no CPU time"
                return f"did not answer for {silent_s:.0f} s, {how}, and was killed"
            if self._policy.busy_s and silent_s >= self._policy.busy_s:
                return f"did not end a step within {silent_s:.0f} s, and was killed"


def _is_idle(previous_sight: Sight | None, sight: Sight | None, seconds: float) -> bool:
    """Whether a process did nothing for the last `seconds`."""
    if sight is None:
        return False
    if sight.stopped:
        return True
    if previous_sight is None or sight.reads:
        return False
    return sight.cpu_s - previous_sight.cpu_s < _IDLE_SHARE * seconds
