"""Loads and unloads proposers while requests are served, and records each change.

The engine allows one change at a time. It does not know which proposer is active, in flight, or
the target of a running switch. So an unload is checked here, with no `await` between the check
and the change.
"""

from collections.abc import Mapping
from typing import Any

from engine_adapter.proposers.methods import read_name
from engine_adapter.seam.errors import ProposerRefused
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.types import ProposerInfo
from server.control.admin.allowed_models import AllowedModels
from server.control.admin.audit import Audit
from server.control.records import ProposerRecord
from server.control.switching.switcher import Switcher
from server.control.types import SERVER, Caller, LoadOutcome
from server.telemetry.metrics import Metrics


class ProposerAdmin:
    """Changes which proposers are loaded. Lives on the event loop."""

    def __init__(
        self,
        engine: Engine,
        switcher: Switcher,
        allowed_models: AllowedModels,
        metrics: Metrics,
        audit: Audit,
    ) -> None:
        self._engine = engine
        self._allowed = allowed_models
        self._switcher = switcher
        self._metrics = metrics
        self._audit = audit

    async def load(self, fields: Mapping[str, Any], caller: Caller = SERVER) -> ProposerInfo:
        """Loads a proposer; see `Engine.load_proposer`. Continues if its caller is cancelled.

        Raises `EngineConfigError` for a name that no proposer can have; that is not recorded.
        """
        name = read_name(fields)
        return await self._audit.recorded(
            self._load(fields), ProposerRecord, "load_proposer", name, LoadOutcome.LOADED, caller
        )

    async def unload(self, name: str, caller: Caller = SERVER) -> None:
        """Unloads a proposer that is not in use; see `Engine.unload_proposer`."""
        change = self._unload(name)
        await self._audit.recorded(
            change, ProposerRecord, "unload_proposer", name, LoadOutcome.UNLOADED, caller
        )

    async def _load(self, fields: Mapping[str, Any]) -> ProposerInfo:
        if isinstance(model := fields.get("model"), str):
            await self._allowed.check(model, "proposer", "model")
        info = await self._engine.load_proposer(fields)
        self._metrics.declare_proposers([info.name])
        return info

    async def _unload(self, name: str) -> None:
        self._refuse_in_use(name)
        await self._engine.unload_proposer(name)
        self._metrics.forget_proposer(name)

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
