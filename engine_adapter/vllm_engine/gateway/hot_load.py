"""Loading and unloading proposers while the engine serves.

A call to the workers runs between two steps and holds every stream for its length. So calls only
begin a load, ask for it, and take it over; the weights are read in a thread of each worker
(`background.BackgroundLoad`). On every rank the change takes effect before the same step.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from engine_adapter.errors import EngineConfigError, EngineDead, EngineError
from engine_adapter.proposer_registry import ProposerRegistry
from engine_adapter.proposers.contract import ProposerSpec, TargetSizes
from engine_adapter.proposers.methods import get_method
from engine_adapter.types import ProposerInfo
from engine_adapter.vllm_engine.wire import LoadState

_POLL_S = 0.05
"""How often a load is asked for; each time takes the engine less than a millisecond."""


class Process(Protocol):
    """An engine process, as far as it is called here; see `process.EngineProcess`."""

    async def call(self, method: str, *args: Any) -> Any:
        """Runs a method of EngineCore between two steps. Raises `EngineDead`."""

    async def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        """Runs a method of the worker on every rank, between two steps. Raises `EngineDead`."""


class ProposerLoader:
    """Changes which proposers are loaded, one at a time.

    Args:
        registry: what is loaded; kept up to date here.
        capacity: the draft capacity, which no k may exceed.
    """

    def __init__(self, registry: ProposerRegistry, capacity: int) -> None:
        self._registry = registry
        self._capacity = capacity

    async def load(
        self, process: Process, fields: Mapping[str, Any], sizes: TargetSizes
    ) -> ProposerInfo:
        """Loads a proposer; see `Engine.load_proposer`. One that fails leaves nothing behind."""
        spec = self._registry.check_load(fields, self._capacity)
        self._registry.loading = spec
        try:
            await asyncio.to_thread(_check_weights, spec, sizes)
            return self._registry.add(spec, await _load(process, spec))
        finally:
            self._registry.loading = None

    async def unload(self, process: Process, name: str) -> None:
        """Unloads a proposer; see `Engine.unload_proposer`."""
        self._registry.check_unload(name)
        # Before anything is waited for, so that no request can choose it meanwhile.
        self._registry.remove(name)
        await process.collective_rpc("specgate_unload", name)
        await process.call("specgate_clear_faults", name)


def _check_weights(spec: ProposerSpec, sizes: TargetSizes) -> None:
    try:
        get_method(spec.method).check(spec, sizes)
    except ValueError as error:
        raise _unusable(spec, str(error), getattr(error, "field", "model")) from error


async def _load(process: Process, spec: ProposerSpec) -> list[Any]:
    """Loads it on every rank, or on none; what each rank's proposers hold then."""
    await process.collective_rpc("specgate_load", asdict(spec))
    try:
        await _end_of(spec, process)
    except EngineDead:
        raise
    except EngineError:
        await process.collective_rpc("specgate_unload", spec.name)
        raise
    return await process.collective_rpc("specgate_install")


async def _end_of(spec: ProposerSpec, process: Process) -> None:
    """Waits until every rank is ready. Raises `EngineError` where one is not."""
    while True:
        states = await process.collective_rpc("specgate_load_state")
        if _ended(spec, states):
            return
        await asyncio.sleep(_POLL_S)


def _ended(spec: ProposerSpec, states: list[tuple[str, str]]) -> bool:
    """Whether every rank is ready. Raises what the first that failed says, once all have ended."""
    if any(state == LoadState.READING for state, _ in states):
        return False
    for state, why in states:
        if state == LoadState.REFUSED:
            raise _unusable(spec, why)
        if state == LoadState.FAILED:
            raise EngineError(f"{spec.name!r} was not loaded: {why}")
    return True


def _unusable(spec: ProposerSpec, why: str, field: str = "model") -> EngineConfigError:
    return EngineConfigError("proposer", f"{spec.name}: {why}", field)
