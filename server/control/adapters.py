"""Loading and unloading LoRA adapters while requests are served: who asked, what became of it."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from engine_adapter.errors import AdapterRefused
from engine_adapter.interface import Engine, LoraAdapter
from server.control.audit import SERVER, AdapterRecord, Audit, Caller

T = TypeVar("T")


class AdapterAdmin:
    """Changes which adapters are loaded. Lives on the event loop.

    Args:
        served_names: the target's own, which no adapter may bear.
    """

    def __init__(self, engine: Engine, served_names: tuple[str, ...], audit: Audit) -> None:
        self._engine = engine
        self._served_names = served_names
        self._audit = audit

    async def load(self, name: str, path: str, caller: Caller = SERVER) -> LoraAdapter:
        """Loads an adapter; see `Engine.load_adapter`. It goes on if its caller is cancelled."""
        change = self._recorded(self._load(name, path), "load_lora_adapter", "loaded", name, caller)
        return await asyncio.shield(asyncio.create_task(change))

    async def unload(self, name: str, caller: Caller = SERVER) -> None:
        """Unloads an adapter; see `Engine.unload_adapter`."""
        unloading = self._engine.unload_adapter(name)
        change = self._recorded(unloading, "unload_lora_adapter", "unloaded", name, caller)
        await asyncio.shield(asyncio.create_task(change))

    async def _load(self, name: str, path: str) -> LoraAdapter:
        if name in self._served_names:
            raise AdapterRefused("adapter_exists", f"{name!r} is the name of the model itself.")
        return await self._engine.load_adapter(name, path)

    async def _recorded(
        self, change: Awaitable[T], what: str, outcome: str, name: str, caller: Caller
    ) -> T:
        when, begun, why = time.time(), time.perf_counter(), None
        try:
            return await change
        except BaseException as error:
            outcome = "refused" if isinstance(error, AdapterRefused) else "failed"
            why = str(error) or type(error).__name__
            raise
        finally:
            took_ms = round((time.perf_counter() - begun) * 1e3, 3)
            self._audit.add(AdapterRecord(when, caller, what, name, outcome, why, took_ms))
