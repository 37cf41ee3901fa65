"""A key file whose keys are replaced while a server is used, as a team replaces them."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.served import Served, wait_until

OPERATOR = "sk-operator"
"""The admin key that is never replaced."""


@dataclass(frozen=True)
class Keys:
    """One key of each role."""

    number: int

    @property
    def api(self) -> str:
        """Opens inference."""
        return f"sk-team-{self.number}"

    @property
    def admin(self) -> str:
        """Opens switches."""
        return f"sk-ops-{self.number}"

    @property
    def metrics(self) -> str:
        """Opens the metrics."""
        return f"sk-scraper-{self.number}"

    def lines(self) -> list[str]:
        """Their lines of the key file."""
        return [
            f"team api {self.api}",
            f"ops admin {self.admin}",
            f"scraper metrics {self.metrics}",
        ]

    def next(self) -> "Keys":
        """Those that replace them."""
        return Keys(self.number + 1)


@dataclass
class KeyFile:
    """A server's key file.

    Attributes:
        keys: what clients should use.
        retired: keys that were in the file, and are not any more.
    """

    path: Path
    keys: Keys = Keys(1)
    retired: list[Keys] = field(default_factory=list)

    def write(self, *valid: Keys) -> None:
        """Replaces the file in one step: a server that reads it meanwhile gets a whole one."""
        lines = [f"operator admin {OPERATOR}", *(line for keys in valid for line in keys.lines())]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.path)

    async def reload(self, served: Served, *valid: Keys) -> None:
        """Makes only these keys, and the operator's, valid."""
        before = len(served.logged("keys_reloaded"))
        self.write(*valid)
        served.process.send_signal(signal.SIGHUP)

        def reloaded() -> bool:
            return len(served.logged("keys_reloaded")) > before

        await asyncio.to_thread(wait_until, reloaded, 30, "the keys are read again")

    async def rotate(self, served: Served, unused: Callable[[], Awaitable[None]]) -> None:
        """New keys beside the old ones; later, when no client sends an old one, without them."""
        old, new = self.keys, self.keys.next()
        await self.reload(served, old, new)
        self.keys = new
        await unused()
        await self.reload(served, new)
        self.retired.append(old)
