"""The LoRA adapters of an engine: which are loaded, which may be loaded, and which are in use.

There are never more than the engine can keep in memory. vLLM would otherwise evict one and read it
from disk again in a step, where a missing file ends the process.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

from engine_adapter.registries.adapter_files import adapter_folder
from engine_adapter.seam.errors import InvalidRequest, LoraRefused
from engine_adapter.seam.types import LoraAdapter

DEFAULT_MAX_LOADED = 16
"""The most adapters that can be loaded if `max_cpu_loras` is not set."""


class LoraRegistry:
    """The adapters of an engine, by name.

    Args:
        arguments: the engine's arguments; `enable_lora`, `max_loras` and `max_cpu_loras` are read.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._enabled = bool(arguments.get("enable_lora"))
        self._max_loaded = max_loaded(arguments)
        self._loading: set[str] = set()
        self._loaded: dict[str, LoraAdapter] = {}
        self._num_users: Counter[int] = Counter()
        # An id is never used again: no cache can mistake an adapter for an earlier one.
        self._ids = count(1)

    @property
    def loaded(self) -> tuple[LoraAdapter, ...]:
        """The loaded adapters, in the order in which they were loaded."""
        return tuple(self._loaded.values())

    @asynccontextmanager
    async def loading(self, name: str, path: str) -> AsyncIterator[LoraAdapter]:
        """Yields the adapter to load in the block; it is registered if the block succeeds.

        Its files are found first, and downloaded if `path` is a hub id.

        Raises:
            LoraRefused: it cannot be loaded in the current state.
            EngineConfigError: `path` does not lead to an adapter.
        """
        self._check(name)
        self._loading.add(name)
        try:
            folder = await asyncio.to_thread(adapter_folder, name, path)
            adapter = LoraAdapter(name, path, folder, next(self._ids))
            yield adapter
            self._loaded[name] = adapter
        finally:
            self._loading.discard(name)

    def _check(self, name: str) -> None:
        self._check_enabled()
        names = {*self._loaded, *self._loading}
        if name in names:
            raise LoraRefused("adapter_exists", f"An adapter {name!r} is loaded already.")
        if len(names) >= self._max_loaded:
            message = f"{len(names)} adapters are loaded, as many as max_cpu_loras allows."
            raise LoraRefused("no_room", message)

    def _check_enabled(self) -> None:
        if not self._enabled:
            message = "LoRA is off; start the server with --enable-lora."
            raise LoraRefused("lora_disabled", message)

    def remove(self, name: str) -> LoraAdapter:
        """Removes an adapter that no request uses; later requests cannot use it.

        Raises:
            LoraRefused: LoRA is off, the adapter is not loaded, or requests use it.
        """
        self._check_enabled()
        adapter = self._loaded.get(name)
        if adapter is None:
            raise LoraRefused("adapter_not_found", f"No adapter {name!r} is loaded.")
        if users := self._num_users[adapter.id]:
            raise LoraRefused("adapter_in_use", f"{users} running sequences use {name!r}.")
        return self._loaded.pop(name)

    def drop(self, adapter: LoraAdapter) -> None:
        """Removes an adapter that the engine has lost, even if requests use it."""
        self._loaded.pop(adapter.name, None)

    @contextmanager
    def keep_loaded(self, adapter: LoraAdapter | None) -> Iterator[None]:
        """Marks the adapter as in use during the block; `None` is the base model.

        Raises:
            InvalidRequest: the adapter is no longer loaded.
        """
        if adapter is None:
            yield
            return
        if adapter not in self._loaded.values():
            message = f"The model {adapter.name!r} was unloaded."
            raise InvalidRequest("model", message, "model_not_found")
        self._num_users[adapter.id] += 1
        try:
            yield
        finally:
            self._num_users[adapter.id] -= 1


def max_loaded(arguments: Mapping[str, Any]) -> int:
    """The most adapters that an engine with these arguments can have loaded."""
    max_cpu_loras = arguments.get("max_cpu_loras")
    return int(max_cpu_loras or max(int(arguments.get("max_loras") or 1), DEFAULT_MAX_LOADED))
