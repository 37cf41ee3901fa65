"""Limits of time, and the errors with which they end a request."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from server.errors import ApiError


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The time by which something must have ended.

    Attributes:
        at_s: by the clock of the event loop.
        error: makes the error that is raised if it has not ended by then.
    """

    at_s: float
    error: Callable[[], ApiError]

    @classmethod
    def after(cls, seconds: float, error: Callable[[], ApiError]) -> "TimeLimit | None":
        """The limit so many seconds from now; 0 sets no limit."""
        if not seconds:
            return None
        return cls(asyncio.get_running_loop().time() + seconds, error)

    @staticmethod
    def earliest(*limits: "TimeLimit | None") -> "TimeLimit | None":
        """The limit that comes first."""
        set_limits = [limit for limit in limits if limit is not None]
        return min(set_limits, key=lambda limit: limit.at_s, default=None)

    @property
    def left_s(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self.at_s - asyncio.get_running_loop().time())


@asynccontextmanager
async def within(limit: TimeLimit | None) -> AsyncIterator[None]:
    """Cancels the block at the limit, and raises the limit's error."""
    if limit is None:
        yield
        return
    try:
        async with asyncio.timeout_at(limit.at_s) as timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise limit.error() from None
