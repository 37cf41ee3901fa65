"""The state of the fleet, for a replica that starts, or that missed a switch.

Before it is ready, a server asks some of the others; later it asks one at a time, now and then:
what one replica knows reaches all others in a number of rounds that grows with the logarithm of
their number (Demers et al., "Epidemic Algorithms for Replicated Database Maintenance", 1987,
section 1.3, pull).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import structlog

from server.fleet.desired import DesiredState, rank_of
from server.fleet.member import Member

ASKED_AT_START = 16
"""How many others a server asks before it is ready: their number costs the fleet, not the answer.
"""

Ask = Callable[[int], Awaitable[Sequence[DesiredState | None]]]
"""The states that at most so many others know; those that do not answer are left out."""

log = structlog.get_logger(__name__)


class Follower:
    """Tells a member what others know.

    Args:
        poll_s: mean seconds between two questions; 0 asks only at the start.
    """

    def __init__(self, member: Member, ask: Ask, poll_s: float) -> None:
        self._member = member
        self._ask = ask
        self._poll_s = poll_s
        self._following: asyncio.Task[None] | None = None

    async def learn(self, max_replicas: int = ASKED_AT_START) -> bool:
        """Takes what at most so many others know. Returns whether any has answered."""
        states = await self._ask(max_replicas)
        largest = max(states, key=rank_of, default=None)
        if largest is not None and largest.rank > rank_of(self._member.desired):
            await self._member.set(largest)
        return bool(states)

    def start(self) -> None:
        """Asks now and then from now on."""
        if self._poll_s:
            self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Ends the questions."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def _follow(self) -> None:
        while True:
            # Replicas that were started together do not ask together.
            await asyncio.sleep(self._poll_s * random.uniform(0.5, 1.5))
            try:
                await self.learn(1)
            except Exception as error:
                log.error("fleet_follow_failed", exc_info=error)
