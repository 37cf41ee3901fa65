"""Loading and unloading LoRA adapters while requests are served: who asked, what became of it."""

from engine_adapter.errors import LoraRefused
from engine_adapter.interface import Engine
from engine_adapter.types import LoraAdapter
from server.control.audit import ADAPTER, Audit
from server.control.types import SERVER, Caller, LoadOutcome


class LoraAdmin:
    """Changes which adapters are loaded. Lives on the event loop.

    Args:
        served_names: the target's own, which no adapter may bear.
    """

    def __init__(self, engine: Engine, served_names: tuple[str, ...], audit: Audit) -> None:
        self._engine = engine
        self._served_names = served_names
        self._audit = audit

    async def load(self, name: str, path: str, caller: Caller = SERVER) -> LoraAdapter:
        """See `Engine.load_lora_adapter`. Continues if its caller is cancelled."""
        return await self._audit.recorded(
            self._load(name, path), "load_lora_adapter", ADAPTER, name, LoadOutcome.LOADED, caller
        )

    async def unload(self, name: str, caller: Caller = SERVER) -> None:
        """Unloads an adapter; see `Engine.unload_lora_adapter`."""
        unloading = self._engine.unload_lora_adapter(name)
        await self._audit.recorded(
            unloading, "unload_lora_adapter", ADAPTER, name, LoadOutcome.UNLOADED, caller
        )

    async def _load(self, name: str, path: str) -> LoraAdapter:
        if name in self._served_names:
            raise LoraRefused("adapter_exists", f"{name!r} is the name of the model itself.")
        return await self._engine.load_lora_adapter(name, path)
