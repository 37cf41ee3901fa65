"""Typed access to what the lifespan holds. The one object that routes take things from."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from engine_adapter.errors import EngineNotReady
from engine_adapter.interface import Engine
from engine_adapter.types import EngineInfo
from server.control.audit import Audit
from server.control.lora_admin import LoraAdmin
from server.control.proposer_admin import ProposerAdmin
from server.control.selection import LoadedProposers
from server.control.switcher import Switcher
from server.rendering import Renderer
from server.settings import Settings
from server.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Loaded:
    """What can only be made once the engine has started.

    Attributes:
        at: Unix time in seconds of that moment.
    """

    info: EngineInfo
    switcher: Switcher
    proposers: ProposerAdmin
    adapters: LoraAdmin
    renderer: Renderer
    at: float = field(default_factory=time.time)


@dataclass(slots=True)
class State:
    """Everything that lives as long as the application; `app.state.specgate`.

    Attributes:
        loaded: `None` until the engine has started.
        startup_error: why it did not start.
        started: set when either of the two is.
        draining: the server is stopping; `/ready` says no.
    """

    settings: Settings
    engine: Engine
    metrics: Metrics
    registry: CollectorRegistry
    audit: Audit
    loaded: Loaded | None = None
    startup_error: Exception | None = None
    draining: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ready(self) -> bool:
        """Whether a request would be served now."""
        return self.loaded is not None and self.engine.failure is None and not self.draining

    @property
    def info(self) -> EngineInfo:
        """Raises `EngineNotReady`, which is a 503, before the engine has started."""
        return self._require().info

    @property
    def catalog(self) -> LoadedProposers:
        """The loaded proposers. Raises `EngineNotReady`, which is a 503, before the start."""
        settings = self.settings
        return LoadedProposers.of(self.engine.info, settings.primary, settings.backup)

    @property
    def switcher(self) -> Switcher:
        """Raises `EngineNotReady`, which is a 503, before the engine has started."""
        return self._require().switcher

    @property
    def proposers(self) -> ProposerAdmin:
        """Raises `EngineNotReady`, which is a 503, before the engine has started."""
        return self._require().proposers

    @property
    def adapters(self) -> LoraAdmin:
        """Raises `EngineNotReady`, which is a 503, before the engine has started."""
        return self._require().adapters

    @property
    def renderer(self) -> Renderer:
        """Raises `EngineNotReady`, which is a 503, before the engine has started."""
        return self._require().renderer

    @property
    def loaded_at(self) -> float:
        """Unix time in seconds at which serving began. Raises `EngineNotReady` before."""
        return self._require().at

    def _require(self) -> Loaded:
        if self.loaded is None:
            raise EngineNotReady("the engine has not started yet")
        return self.loaded


# Coroutines, although nothing is awaited: FastAPI would call functions in a thread, per request.


async def get_state(request: Request) -> State:
    """The application's state, whether or not the engine has started."""
    state: State = request.app.state.specgate
    return state


async def get_loaded_state(request: Request) -> State:
    """The state of an engine that has started, dead or alive. Raises `EngineNotReady` (503)."""
    state = await get_state(request)
    state._require()
    return state


async def get_ready_state(request: Request) -> State:
    """The state of an engine that serves. Raises `EngineNotReady` (503) or `EngineDead` (503)."""
    state = await get_loaded_state(request)
    if failure := state.engine.failure:
        raise failure
    return state


AnyState = Annotated[State, Depends(get_state)]
"""For routes that answer while the engine loads."""

LoadedState = Annotated[State, Depends(get_loaded_state)]
"""For routes that answer while the engine is dead, too: 503 until it has started."""

ReadyState = Annotated[State, Depends(get_ready_state)]
"""For routes that need the engine: 503 until it has started, and while it is dead."""
