"""The LoRA adapters of several engines.

Each engine numbers its adapters itself. A request has the adapter as it is shown here, and gets
that of its engine.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from engine_adapter.data_parallel.changes import make
from engine_adapter.data_parallel.rank import Change, DataParallelRank
from engine_adapter.seam.errors import InvalidRequest, LoraRefused
from engine_adapter.seam.types import GenerationRequest, LoraAdapter


class Adapters:
    """The adapters, by name. Lives on the event loop."""

    def __init__(self) -> None:
        self._adapters: dict[str, LoraAdapter] = {}
        self._num_users: Counter[str] = Counter()
        self._ids = count(1)
        self._changing = asyncio.Lock()

    def begin(self, adapters: Sequence[LoraAdapter]) -> None:
        """Shows those that the engines have started with."""
        for adapter in adapters:
            self._show(adapter)

    def _show(self, adapter: LoraAdapter) -> LoraAdapter:
        numbered = self._adapters[adapter.name] = replace(adapter, id=next(self._ids))
        return numbered

    # -- requests ----------------------------------------------------------------------------

    @contextmanager
    def keep_loaded(self, adapter: LoraAdapter | None) -> Iterator[None]:
        """Keeps an adapter loaded during the block. Raises `InvalidRequest` if it is not."""
        if adapter is None:
            yield
            return
        if self._adapters.get(adapter.name) != adapter:
            raise _unloaded(adapter)
        self._num_users[adapter.name] += 1
        try:
            yield
        finally:
            self._num_users[adapter.name] -= 1

    def holders(
        self, adapter: LoraAdapter | None, ranks: Sequence[DataParallelRank]
    ) -> list[DataParallelRank]:
        """The engines that have an adapter; every one has the model itself, `None`."""
        return [rank for rank in ranks if adapter is None or _adapter_of(rank, adapter) is not None]

    def check_held(self, adapter: LoraAdapter | None, holders: Sequence[DataParallelRank]) -> None:
        """Raises `InvalidRequest` if no engine has an adapter: its files are gone."""
        if adapter is not None and not holders:
            raise _unloaded(adapter)

    def for_rank(self, request: GenerationRequest, rank: DataParallelRank) -> GenerationRequest:
        """A request with its adapter as an engine knows it."""
        adapter = request.lora_adapter
        return (
            request
            if adapter is None
            else replace(request, lora_adapter=_adapter_of(rank, adapter))
        )

    def available(self, ranks: Sequence[DataParallelRank]) -> tuple[LoraAdapter, ...]:
        """Those that one of the engines has."""
        names = {adapter.name for rank in ranks for adapter in rank.engine.lora_adapters}
        return tuple(adapter for adapter in self._adapters.values() if adapter.name in names)

    # -- changes -----------------------------------------------------------------------------

    async def load(self, name: str, path: str, ranks: Sequence[DataParallelRank]) -> LoraAdapter:
        """See `Engine.load_lora_adapter`."""
        async with self._changing:
            change = Change(
                f"the load of adapter {name}",
                lambda engine: engine.load_lora_adapter(name, path),
                lambda engine: engine.unload_lora_adapter(name),
                needs_all=True,
            )
            return self._show((await make(change, ranks))[0])

    async def unload(self, name: str, ranks: Sequence[DataParallelRank]) -> None:
        """See `Engine.unload_lora_adapter`."""
        async with self._changing:
            if users := self._num_users[name]:
                raise LoraRefused("adapter_in_use", f"{users} running sequences use {name!r}.")
            # From here on no request can begin to use it.
            adapter = self._adapters.pop(name, None)
            path = "" if adapter is None else adapter.path
            change = Change(
                f"the unload of adapter {name}",
                lambda engine: engine.unload_lora_adapter(name),
                lambda engine: engine.load_lora_adapter(name, path),
            )
            try:
                await make(change, ranks)
            except Exception:
                if adapter is not None:
                    self._adapters[name] = adapter
                raise


def _adapter_of(rank: DataParallelRank, adapter: LoraAdapter) -> LoraAdapter | None:
    rank_adapters = rank.engine.lora_adapters
    return next((candidate for candidate in rank_adapters if candidate.name == adapter.name), None)


def _unloaded(adapter: LoraAdapter) -> InvalidRequest:
    return InvalidRequest("model", f"The model {adapter.name!r} was unloaded.", "model_not_found")
