"""The application's state: what exists from the beginning, and what exists once the engine runs."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from engine_adapter.seam.errors import EngineNotReady
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.types import EngineInfo
from server.batches.service import Batches
from server.control.admin.audit import Audit
from server.control.admin.lora_admin import LoraAdmin
from server.control.admin.policy_admin import PolicyAdmin
from server.control.admin.proposer_admin import ProposerAdmin
from server.control.admission.admission import Admission
from server.control.admission.key_limits import KeyLimits
from server.control.method_names import LoadedProposers
from server.control.routing.router import Router
from server.control.switching.switcher import Switcher
from server.errors import ApiError
from server.fleet.follower import Follower
from server.fleet.member import Member
from server.fleet.peers import Peers
from server.http.keyring import Keyring
from server.media.prompts import MediaPrompts
from server.openai.responses.store import ResponseStore
from server.rendering import Renderer
from server.settings import Settings
from server.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from server.telemetry.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything that routes need of a started engine.

    Attributes:
        info: the engine as it started.
        loaded_proposers: returns the proposers that are loaded at the time of the call.
        started_at: Unix time in seconds.
    """

    settings: Settings
    engine: Engine
    metrics: Metrics
    audit: Audit
    info: EngineInfo
    renderer: Renderer
    media: MediaPrompts
    admission: Admission
    switcher: Switcher
    router: Router
    loaded_proposers: Callable[[], LoadedProposers]
    proposer_admin: ProposerAdmin
    lora_admin: LoraAdmin
    policy_admin: PolicyAdmin
    fleet: Member
    responses: ResponseStore
    key_limits: KeyLimits
    started_at: float = field(default_factory=time.time)


@dataclass(slots=True)
class AppState:
    """Everything that lives as long as the application; `app.state.specgate`.

    Attributes:
        tracing: `None` if traces are off.
        batches: files and batches; `None` without `--files-dir`.
        runtime: `None` until the engine has started.
        startup_error: the reason why the engine did not start.
        start_ended: set when the start has ended, with a runtime or with an error.
        leaving: the server was told to stop. It may accept requests for a while.
        fleet_parts: what follows the fleet's state, to be closed in this order.
        reading: the tasks of the requests whose body has not arrived in full.
    """

    settings: Settings
    engine: Engine
    metrics: Metrics
    registry: CollectorRegistry
    audit: Audit
    keyring: Keyring
    key_limits: KeyLimits
    tracing: "Tracing | None" = None
    batches: Batches | None = None
    runtime: Runtime | None = None
    startup_error: Exception | None = None
    start_ended: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: bool = False
    reading: set[asyncio.Task[None]] = field(default_factory=set)
    fleet_parts: "list[Follower | Peers | Member]" = field(default_factory=list)

    def leave(self) -> None:
        """Notes that the server was told to stop. Safe to call twice."""
        self.leaving = True
        if self.batches is not None:
            self.batches.leave()
        if self.runtime is not None:
            # Requests that a drain holds have the same time to finish as others.
            self.runtime.switcher.stop()

    def refusal(self, key: str | None) -> ApiError | None:
        """The error of a request of an API key for which the queue has no place now."""
        return None if self.runtime is None else self.runtime.admission.refusal(key)

    def enabled_batches(self) -> Batches:
        """Files and batches. Raises `ApiError` (409) for a server that keeps none."""
        if self.batches is None:
            message = "This server keeps no files and no batches: start it with --files-dir."
            raise ApiError(409, message, code="files_disabled")
        return self.batches

    @property
    def ready(self) -> bool:
        """Whether clients should send their requests here."""
        return self.engine_up and not self.leaving

    @property
    def engine_up(self) -> bool:
        """Whether the engine has started and is alive."""
        return self.runtime is not None and self.engine.failure is None

    @property
    def engine_given_up(self) -> bool:
        """Whether only a restart of the server can bring an engine back: one of several, or all."""
        failures = self.engine.failures
        dead = any(failure is not None and failure.retry_after_s is None for failure in failures)
        return dead or self.startup_error is not None

    @property
    def why_given_up(self) -> str | None:
        """Why no engine serves or will serve again without a restart; `None` if one does or will.

        With several engines one that is given up leaves this `None`.
        """
        if self.startup_error is not None:
            return str(self.startup_error)
        failure = None if self.runtime is None else self.engine.failure
        return None if failure is None or failure.retry_after_s is not None else str(failure)


# Coroutines: FastAPI would run plain functions in a thread.


async def get_state(request: Request) -> AppState:
    """The application's state, before and after the engine's start."""
    state: AppState = request.app.state.specgate
    return state


async def get_runtime(request: Request) -> Runtime:
    """The runtime of an engine that has started, alive or dead. Raises `EngineNotReady` (503)."""
    state: AppState = request.app.state.specgate
    if state.runtime is None:
        raise EngineNotReady("the engine has not started yet")
    return state.runtime


async def get_ready_runtime(request: Request) -> Runtime:
    """The runtime of a live engine. Raises `EngineNotReady` (503) or `EngineDead` (503)."""
    runtime = await get_runtime(request)
    if failure := runtime.engine.failure:
        raise failure
    return runtime


async def get_started_state(request: Request) -> AppState:
    """The state, once the engine has started. Raises `EngineNotReady` (503)."""
    await get_runtime(request)
    return await get_state(request)


AnyState = Annotated[AppState, Depends(get_state)]
"""For routes that answer while the engine loads."""

StartedRuntime = Annotated[Runtime, Depends(get_runtime)]
"""For routes that also answer while the engine is dead: 503 until it has started."""

ReadyRuntime = Annotated[Runtime, Depends(get_ready_runtime)]
"""For routes that need a live engine: 503 until it has started, and while it is dead."""

StartedState = Annotated[AppState, Depends(get_started_state)]
"""For the routes of files and batches: 503 until the engine has started."""
