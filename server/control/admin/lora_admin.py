"""Loads and unloads LoRA adapters while requests are served, and records each change."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from engine_adapter.seam.errors import LoraRefused
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.types import LoraAdapter
from server.control.admin.allowed_models import AllowedModels, refuse_pickled_adapter
from server.control.admin.audit import Audit
from server.control.records import LoraRecord
from server.control.types import SERVER, Caller, LoadOutcome


class LoraAdmin:
    """Changes which adapters are loaded. Lives on the event loop.

    Args:
        served_names: the target's own names, which no adapter may have.
    """

    def __init__(
        self,
        engine: Engine,
        served_names: tuple[str, ...],
        allowed_models: AllowedModels,
        audit: Audit,
    ) -> None:
        self._engine = engine
        self._allowed = allowed_models
        self._served_names = served_names
        self._audit = audit
        self._num_users: Counter[LoraAdapter] = Counter()

    @contextmanager
    def used(self, adapter: LoraAdapter | None) -> Iterator[None]:
        """Keeps an adapter loaded during the block: that of a request, from its queue to its end.

        The engine knows only the choices that have started. `None` is the target itself.
        """
        if adapter is None:
            yield
            return
        self._num_users[adapter] += 1
        try:
            yield
        finally:
            self._num_users[adapter] -= 1
            if not self._num_users[adapter]:
                del self._num_users[adapter]

    async def load(self, name: str, path: str, caller: Caller = SERVER) -> LoraAdapter:
        """See `Engine.load_lora_adapter`. Continues if its caller is cancelled."""
        change = self._load(name, path)
        return await self._audit.recorded(
            change, LoraRecord, "load_lora_adapter", name, LoadOutcome.LOADED, caller
        )

    async def unload(self, name: str, caller: Caller = SERVER) -> None:
        """See `Engine.unload_lora_adapter`. Continues if its caller is cancelled.

        It is refused while a request of which nothing has started uses the adapter, too.
        """
        change = self._unload(name)
        await self._audit.recorded(
            change, LoraRecord, "unload_lora_adapter", name, LoadOutcome.UNLOADED, caller
        )

    async def _unload(self, name: str) -> None:
        users = sum(n for adapter, n in self._num_users.items() if adapter.name == name)
        if users and any(adapter.name == name for adapter in self._engine.lora_adapters):
            raise LoraRefused("adapter_in_use", f"{users} unfinished requests use {name!r}.")
        await self._engine.unload_lora_adapter(name)

    async def _load(self, name: str, path: str) -> LoraAdapter:
        if name in self._served_names:
            raise LoraRefused("adapter_exists", f"{name!r} is the name of the model itself.")
        await self._allowed.check(path, "lora_modules", "lora_path")
        await refuse_pickled_adapter(path)
        return await self._engine.load_lora_adapter(name, path)
