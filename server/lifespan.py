"""Start, readiness and stop.

The port is open at once. The engine starts in the background; until it has started, only the
routes that need no engine answer. A failed start is recorded in the state and reported to
`StartupCallbacks`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from fastapi import FastAPI

from engine_adapter.seam.errors import EngineError
from engine_adapter.seam.types import EngineInfo
from server.control.admin.allowed_models import AllowedModels
from server.control.admin.lora_admin import LoraAdmin
from server.control.admin.policy_admin import PolicyAdmin
from server.control.admin.proposer_admin import ProposerAdmin
from server.control.admission.admission import Admission, slot_limits
from server.control.method_names import LoadedProposers
from server.control.routing.router import Router
from server.control.switching.switcher import Switcher
from server.fleet.follower import Follower
from server.fleet.http_fleet import fleet_client
from server.fleet.member import Member
from server.fleet.peers import Peers
from server.media.prompts import MediaPrompts
from server.openai.responses.background import stop_background
from server.openai.responses.store import ResponseStore
from server.rendering import Renderer
from server.settings import Settings
from server.state import AppState, Runtime

log = structlog.get_logger(__name__)


def _ignore(_: object) -> None:
    """The default of a callback."""


@dataclass(frozen=True, slots=True)
class StartupCallbacks:
    """Reports the start to the command that runs the server; called on the event loop's thread.

    Attributes:
        on_progress: a line for each stage of loading.
        on_ready: requests are served from now on.
        on_startup_failed: the engine will never be ready; the process should end.
    """

    on_progress: Callable[[str], None] = _ignore
    on_ready: Callable[[EngineInfo], None] = _ignore
    on_startup_failed: Callable[[Exception], None] = _ignore


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Starts the engine in the background; stops it, traces and audit after the last request."""
    state: AppState = app.state.specgate
    start_task = asyncio.create_task(_start(state, app.state.startup_callbacks))
    try:
        yield
    finally:
        state.leave()
        start_task.cancel()
        await asyncio.gather(start_task, return_exceptions=True)
        if state.runtime is not None:
            await stop_background(state.runtime.responses)
        for part in state.fleet_parts:
            await part.close()
        if state.batches is not None:
            await state.batches.close()
        closing = [] if state.tracing is None else [state.tracing.close()]
        await asyncio.gather(state.engine.stop(), *closing)
        state.audit.close()


async def _start(state: AppState, callbacks: StartupCallbacks) -> None:
    try:
        await state.engine.start(callbacks.on_progress)
        runtime = await _create_runtime(state)
        state.metrics.policies.watch(state.engine)
        state.fleet_parts.append(runtime.fleet)
        await _join_fleet(state, runtime.fleet)
        state.runtime = runtime
        _begin_batches(state, runtime)
        if state.leaving:  # told before there was a runtime
            state.leave()
    except Exception as error:
        if not isinstance(error, EngineError):
            # The message of an `EngineError` is enough; any other error needs its traceback.
            log.error("startup_failed", exc_info=error)
        state.startup_error = error
        callbacks.on_startup_failed(error)
    else:
        callbacks.on_ready(state.runtime.info)
    finally:
        state.start_ended.set()


def _begin_batches(state: AppState, runtime: Runtime) -> None:
    """Answers batches from now on, those included that the last stop interrupted."""
    if state.batches is None:
        return
    state.batches.begin(state.keyring.has_owner, runtime.admission.slots.limits.background)


async def _join_fleet(state: AppState, member: Member) -> None:
    """Takes the fleet's method, and follows it from then on."""
    settings = state.settings
    if not settings.fleet_peers and settings.fleet_state is None:
        return
    key = None if settings.fleet_key is None else settings.fleet_key.get_secret_value()
    peers = Peers(fleet_client(key), settings.fleet_peers, settings.fleet_state)
    follower = Follower(member, peers.ask, settings.fleet_poll_s)
    state.fleet_parts[:0] = [follower, peers]
    if not await follower.learn():
        sources = {"peers": list(settings.fleet_peers), "state_file": settings.fleet_state}
        log.warning("fleet_not_found", **sources)
    follower.start()


async def _load_renderer(settings: Settings, info: EngineInfo) -> Renderer:
    renderer = await asyncio.to_thread(
        Renderer.load,
        info.tokenizer,
        chat_template=settings.chat_template,
        # The model's revision does not exist in another tokenizer's repository.
        revision=settings.revision if info.tokenizer == info.model else None,
        trust_remote_code=bool(settings.trust_remote_code),
        has_own_class=info.engine != "fake",
        special_tokens_as_text=settings.special_tokens_in_chats == "as-text",
        media=info.media,
    )
    if not renderer.has_chat_template:
        log.warning("no_chat_template", tokenizer=info.tokenizer)
    return renderer


async def _create_runtime(state: AppState) -> Runtime:
    settings, engine, metrics, audit = state.settings, state.engine, state.metrics, state.audit
    info, keyring = engine.info, state.keyring

    def loaded_proposers() -> LoadedProposers:
        return LoadedProposers.from_engine(engine.info, settings.primary, settings.backup)

    metrics.usage.declare(keyring.api_key_names())
    admission = Admission(
        slot_limits(settings, info), settings, metrics.admission, is_shared=keyring.is_shared
    )
    switcher = Switcher(
        engine, loaded_proposers, metrics, settings.spec_method, audit, admission.slots
    )
    router = Router(settings.rules(keyring.api_key_names()), loaded_proposers, metrics)
    policy_admin = PolicyAdmin(
        engine, router, loaded_proposers, keyring.api_key_names, metrics, audit
    )
    responses = ResponseStore(settings.max_stored_responses, settings.max_stored_response_bytes)
    metrics.responses.watch(responses)
    allowed = AllowedModels(settings.loadable_folders(), settings.loadable_hub_ids())
    return Runtime(
        settings=settings,
        engine=engine,
        metrics=metrics,
        audit=audit,
        info=info,
        renderer=await _load_renderer(settings, info),
        media=MediaPrompts(engine, info.media, metrics.media, settings.max_video_pixels),
        admission=admission,
        switcher=switcher,
        router=router,
        loaded_proposers=loaded_proposers,
        proposer_admin=ProposerAdmin(engine, switcher, allowed, metrics, audit),
        lora_admin=LoraAdmin(engine, settings.served_model_name, allowed, audit),
        policy_admin=policy_admin,
        fleet=Member(switcher, policy_admin),
        responses=responses,
        key_limits=state.key_limits,
    )
