"""Start, readiness and stop.

The port is open at once; the engine starts in the background, and until it has, only the
routes that need no engine answer. A start that fails is recorded and reported to `Hooks`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from fastapi import FastAPI

from engine_adapter.errors import EngineError
from engine_adapter.types import EngineInfo
from server.control.lora_admin import LoraAdmin
from server.control.proposer_admin import ProposerAdmin
from server.control.switcher import Switcher
from server.rendering import Renderer
from server.state import Loaded, State

log = structlog.get_logger(__name__)


def _ignore(_: object) -> None:
    """A hook that nobody has set."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the command wants to hear of the start; called on the event loop's thread.

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
    """Starts the engine beside the server, and stops it after the last request."""
    state: State = app.state.specgate
    starting = asyncio.create_task(_start(state, app.state.hooks))
    try:
        yield
    finally:
        state.draining = True
        if state.loaded is not None:
            state.loaded.switcher.stop()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await state.engine.stop()


async def _start(state: State, hooks: Hooks) -> None:
    try:
        await state.engine.start(hooks.on_progress)
        state.loaded = await _load(state)
    except Exception as error:
        if not isinstance(error, EngineError):
            # Not one that says all in its message.
            log.error("startup_failed", exc_info=error)
        state.startup_error = error
        hooks.on_startup_failed(error)
    else:
        hooks.on_ready(state.info)
    finally:
        state.started.set()


async def _load(state: State) -> Loaded:
    """What serving needs besides the engine, made from what the engine says of itself."""
    info, settings = state.engine.info, state.settings
    renderer = await asyncio.to_thread(
        Renderer.load,
        info.tokenizer,
        chat_template=settings.chat_template,
        # A tokenizer from elsewhere does not have the model's revisions.
        revision=settings.revision if info.tokenizer == info.model else None,
        trust_remote_code=bool(settings.trust_remote_code),
    )
    if not renderer.has_chat_template:
        log.warning("no_chat_template", tokenizer=info.tokenizer)
    engine, metrics, audit = state.engine, state.metrics, state.audit
    switcher = Switcher(engine, lambda: state.catalog, metrics, settings.spec_method, audit)
    return Loaded(
        info=info,
        switcher=switcher,
        proposers=ProposerAdmin(engine, switcher, metrics, audit),
        adapters=LoraAdmin(engine, settings.served_model_name, audit),
        renderer=renderer,
    )
