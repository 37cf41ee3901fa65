"""Loading and unloading proposers while the engine serves.

A call to the workers runs between two steps, and every stream waits for it. So the calls only begin
a load, poll its state and install the result; a thread of each worker reads the weights
(`background_load.BackgroundLoad`). The change takes effect before the same step on every rank.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from engine_adapter.proposers.contract import ProposerSpec, TargetSizes
from engine_adapter.proposers.methods import get_method, proposer_traits
from engine_adapter.registries.proposer_registry import ProposerRegistry
from engine_adapter.seam.errors import (
    EngineConfigError,
    EngineDead,
    EngineError,
    ProposerRefused,
)
from engine_adapter.seam.media import NOUNS
from engine_adapter.seam.types import ProposerInfo
from engine_adapter.vllm_engine.wire import LoadState

_POLL_S = 0.05
"""Seconds between two polls of a load; a poll takes the engine less than a millisecond."""


class Process(Protocol):
    """The methods of `process.EngineProcess` that are called here."""

    async def call(self, method: str, *args: Any) -> Any:
        """Runs a method of EngineCore between two steps. Raises `EngineDead`."""

    async def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        """Runs a method of the worker on every rank, between two steps. Raises `EngineDead`."""


async def load_proposer(
    process: Process, registry: ProposerRegistry, fields: Mapping[str, Any], sizes: TargetSizes
) -> ProposerInfo:
    """Loads a proposer and adds it to the registry; see `Engine.load_proposer`.

    A proposer that cannot be loaded is removed from every rank.
    """
    spec = registry.check_load(fields)
    registry.loading = spec
    try:
        await asyncio.to_thread(_check_weights, spec, sizes)
        memory = await _load_on_ranks(process, spec)
        traits = proposer_traits(spec, (*registry.specs, spec))
        await process.call("specgate_add_proposer", asdict(traits))
        return registry.add(spec, memory)
    finally:
        registry.loading = None


async def unload_proposer(process: Process, registry: ProposerRegistry, name: str) -> None:
    """Unloads a proposer and removes it from the registry; see `Engine.unload_proposer`."""
    registry.check_unload(name)
    # Before the first await, so that no request can select the proposer meanwhile.
    registry.remove(name)
    # The scheduler first: no plan names a proposer that the workers no longer have.
    await process.call("specgate_remove_proposer", name)
    await process.collective_rpc("specgate_unload", name)


def _check_weights(spec: ProposerSpec, sizes: TargetSizes) -> None:
    try:
        get_method(spec.method).check(spec, sizes)
    except ValueError as error:
        raise _unusable(spec, str(error), getattr(error, "field", "model")) from error


async def _load_on_ranks(process: Process, spec: ProposerSpec) -> list[Any]:
    """Loads the proposer on every rank or on none. Returns the memory of each rank's proposers."""
    await process.collective_rpc("specgate_load", asdict(spec))
    try:
        await _wait_until_ready(process, spec)
        for reason in await process.collective_rpc("specgate_smoke_test_load"):
            if reason:
                raise _unusable(spec, cannot_draft(spec, reason))
    except EngineDead:
        raise
    except EngineError:
        await process.collective_rpc("specgate_unload", spec.name)
        raise
    return await process.collective_rpc("specgate_install")


async def _wait_until_ready(process: Process, spec: ProposerSpec) -> None:
    """Returns when every rank is ready. Raises `EngineError` if the load failed on a rank."""
    while True:
        if _is_ready(spec, await process.collective_rpc("specgate_load_state")):
            return
        await asyncio.sleep(_POLL_S)


def _is_ready(spec: ProposerSpec, states: list[tuple[str, str]]) -> bool:
    """Whether every rank is ready. When all have ended, raises the first failure."""
    if any(state == LoadState.READING for state, _ in states):
        return False
    for state, reason in states:
        if state == LoadState.REFUSED:
            raise _unusable(spec, reason)
        if state == LoadState.NO_ROOM:
            raise ProposerRefused("no_room", f"{spec.name!r} {reason}.")
        if state == LoadState.FAILED:
            raise EngineError(f"{spec.name!r} was not loaded: {reason}")
    return True


async def try_target(process: Process, model: str) -> None:
    """Lets the target of a started process run some steps, on every rank, also with media.

    Raises `EngineConfigError` if it cannot: its first request would end the process.
    """
    for reason in await process.collective_rpc("specgate_try_text"):
        if reason:
            raise EngineConfigError("model", f"{model} cannot run a step on this machine: {reason}")
    for modality, noun in NOUNS.items():
        for reason in await process.collective_rpc("specgate_try_media", modality.value):
            if reason:
                limits = json.dumps({modality: 0})
                raise EngineConfigError(
                    "model",
                    f"{model} cannot read a {noun} on this machine: {reason}. With "
                    f"--limit-mm-per-prompt '{limits}' it is served without.",
                )


async def smoke_test_proposers(process: Process, specs: Sequence[ProposerSpec]) -> None:
    """Lets every proposer of a started process draft once, on every rank.

    Raises:
        EngineConfigError: a proposer cannot draft; the message has all of them.
    """
    faults: dict[str, str] = {}
    for rank_faults in await process.collective_rpc("specgate_smoke_test"):
        faults = {**rank_faults, **faults}
    messages = [f"{s.name}: {cannot_draft(s, faults[s.name])}" for s in specs if s.name in faults]
    if messages:
        raise EngineConfigError("proposer", "; ".join(messages))


def cannot_draft(spec: ProposerSpec, reason: str) -> str:
    """The message for a proposer that was loaded and failed in its first draft."""
    subject = f"model {spec.model}" if spec.model else f"the method {spec.method}"
    return f"{subject} cannot draft for this target: {reason}"


def _unusable(spec: ProposerSpec, reason: str, field: str = "model") -> EngineConfigError:
    return EngineConfigError("proposer", f"{spec.name}: {reason}", field)
