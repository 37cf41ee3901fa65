"""Loading and unloading proposers while requests are served: who asked, and what became of it.

The engine allows one change at a time. What is active, in flight, or about to be switched to is
known here alone, so an unload is refused here, with no `await` between the look and the change.
"""

from collections.abc import Mapping
from typing import Any

from engine_adapter.errors import ProposerRefused
from engine_adapter.interface import Engine
from engine_adapter.types import ProposerInfo
from server.control.audit import PROPOSER, Audit
from server.control.switcher import Switcher
from server.control.types import SERVER, Caller, LoadOutcome
from server.telemetry.metrics import Metrics

_MAX_NAME = 64
"""What a record keeps of a name; none that can be loaded is longer."""


class ProposerAdmin:
    """Changes which proposers are loaded. Lives on the event loop."""

    def __init__(self, engine: Engine, switcher: Switcher, metrics: Metrics, audit: Audit) -> None:
        self._engine = engine
        self._switcher = switcher
        self._metrics = metrics
        self._audit = audit

    async def load(self, fields: Mapping[str, Any], caller: Caller = SERVER) -> ProposerInfo:
        """Loads a proposer; see `Engine.load_proposer`. It goes on if its caller is cancelled."""
        name = str(fields.get("name"))[:_MAX_NAME]
        return await self._audit.recorded(
            self._load(fields), "load_proposer", PROPOSER, name, LoadOutcome.LOADED, caller
        )

    async def unload(self, name: str, caller: Caller = SERVER) -> None:
        """Unloads a proposer that nobody uses; see `Engine.unload_proposer`."""
        await self._audit.recorded(
            self._unload(name),
            "unload_proposer",
            PROPOSER,
            name[:_MAX_NAME],
            LoadOutcome.UNLOADED,
            caller,
        )

    async def _load(self, fields: Mapping[str, Any]) -> ProposerInfo:
        info = await self._engine.load_proposer(fields)
        self._metrics.proposers([info.name])
        return info

    async def _unload(self, name: str) -> None:
        self._refuse_in_use(name)
        await self._engine.unload_proposer(name)
        self._metrics.forget(name)

    def _refuse_in_use(self, name: str) -> None:
        switcher = self._switcher
        if switcher.busy:
            raise ProposerRefused(
                "switch_in_progress", "A switch has not ended yet; try again later."
            )
        if switcher.active.spec_method.proposer == name:
            raise ProposerRefused(
                "proposer_in_use", f"{name!r} is the active method; switch to another one first."
            )
        if count := switcher.in_flight.by_proposer.get(name):
            raise ProposerRefused(
                "proposer_in_use", f"{count} requests that {name!r} drafts for have not ended."
            )
