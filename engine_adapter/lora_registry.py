"""The LoRA adapters that an engine holds: what may be loaded, and what is in use.

An adapter is held until it is unloaded: the engine never holds more than it has room for, so no
step reads one from the disk again, where it may be gone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from engine_adapter.errors import EngineConfigError, InvalidRequest, LoraRefused
from engine_adapter.types import LoraAdapter

DEFAULT_MAX_LOADED = 16
"""The most adapters that are loaded at a time if `max_cpu_loras` is not set."""

CONFIG_FILE = "adapter_config.json"


class LoraRegistry:
    """An engine's adapters, by name.

    Args:
        arguments: the engine's: `enable_lora`, `max_loras`, `max_cpu_loras`.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._enabled = bool(arguments.get("enable_lora"))
        self._max_loaded = max_loaded(arguments)
        self._loading: set[str] = set()
        self._loaded: dict[str, LoraAdapter] = {}
        self._users: Counter[int] = Counter()
        # An id is never used again, so that nothing of an earlier adapter is taken for a later one.
        self._ids = count(1)

    @property
    def loaded(self) -> tuple[LoraAdapter, ...]:
        """The adapters, in the order in which they came."""
        return tuple(self._loaded.values())

    @contextmanager
    def loading(self, name: str, path: str) -> Iterator[LoraAdapter]:
        """Gives the adapter that is loaded meanwhile an id, and holds it from the end on.

        Raises:
            LoraRefused: not as things are.
            EngineConfigError: the folder holds no adapter.
        """
        self._check(name, path)
        self._loading.add(name)
        try:
            adapter = LoraAdapter(name, path, next(self._ids))
            yield adapter
            self._loaded[name] = adapter
        finally:
            self._loading.discard(name)

    def _check(self, name: str, path: str) -> None:
        self._check_enabled()
        known = {*self._loaded, *self._loading}
        if name in known:
            raise LoraRefused("adapter_exists", f"There is an adapter {name!r} already.")
        if len(known) >= self._max_loaded:
            message = f"{len(known)} adapters are loaded; max_cpu_loras allows no more."
            raise LoraRefused("no_room", message)
        folder = Path(path)
        if (folder.exists() or folder.is_absolute()) and not (folder / CONFIG_FILE).is_file():
            message = f"{name}: {path!r} is no folder with a file {CONFIG_FILE}"
            raise EngineConfigError("lora_modules", message, "lora_path")

    def _check_enabled(self) -> None:
        if not self._enabled:
            message = "LoRA is off; the server must be started with --enable-lora."
            raise LoraRefused("lora_disabled", message)

    def remove(self, name: str) -> LoraAdapter:
        """Gives an adapter up that nobody uses; no request gets it from here on.

        Raises:
            LoraRefused: LoRA is off, there is none, or requests use it.
        """
        self._check_enabled()
        adapter = self._loaded.get(name)
        if adapter is None:
            raise LoraRefused("adapter_not_found", f"There is no adapter {name!r}.")
        if users := self._users[adapter.id]:
            raise LoraRefused("adapter_in_use", f"{users} sequences that use it have not ended.")
        return self._loaded.pop(name)

    def drop(self, adapter: LoraAdapter) -> None:
        """Gives an adapter up that is not there any more, whoever uses it."""
        self._loaded.pop(adapter.name, None)

    @contextmanager
    def used(self, adapter: LoraAdapter | None) -> Iterator[None]:
        """A request uses the adapter, if it asks for one. Raises `InvalidRequest` if it is gone."""
        if adapter is None:
            yield
            return
        if adapter not in self._loaded.values():
            message = f"The model {adapter.name!r} was unloaded."
            raise InvalidRequest("model", message, "model_not_found")
        self._users[adapter.id] += 1
        try:
            yield
        finally:
            self._users[adapter.id] -= 1


def max_loaded(arguments: Mapping[str, Any]) -> int:
    """How many adapters an engine with these arguments holds."""
    given = arguments.get("max_cpu_loras")
    return int(given or max(int(arguments.get("max_loras") or 1), DEFAULT_MAX_LOADED))
