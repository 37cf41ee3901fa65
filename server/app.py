"""`create_app`: the application, its middleware and its routes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry
from starlette.middleware import Middleware
from starlette.types import Receive, Scope, Send

from engine_adapter.seam.interface import Engine
from server import __version__
from server.batches.folder import Folder, open_folder
from server.batches.service import Batches
from server.console import pages
from server.contract.document import EncodedDocument
from server.control.admin.audit import Audit
from server.control.admission.key_limits import KeyLimits
from server.errors import install_error_handlers
from server.http.auth import AuthMiddleware
from server.http.body_limit import BodyLimit
from server.http.cors import Cors
from server.http.event_stream import DIRECT_SEND
from server.http.key_limit import KeyLimit
from server.http.keyring import Keyring
from server.http.middleware import AccessLog, ErrorBoundary, RequestId, TraceRequests
from server.lifespan import StartupCallbacks, lifespan
from server.routes import (
    admin,
    batches,
    chat,
    completions,
    console,
    conversations,
    files,
    fleet,
    generate,
    health,
    invocations,
    lora,
    messages,
    metrics,
    models,
    openapi,
    policy,
    responses,
    tokenize,
)
from server.settings import Settings
from server.state import AppState
from server.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from server.telemetry.tracing import Tracing

ROUTERS = (
    chat.router,
    completions.router,
    responses.router,
    conversations.router,
    messages.router,
    invocations.router,
    generate.router,
    models.router,
    tokenize.router,
    files.router,
    batches.router,
    health.router,
    metrics.router,
    openapi.router,
    admin.router,
    fleet.router,
    policy.router,
    lora.router,
)
"""The routers of all routes but the console's."""

LINE_ROUTERS = (chat.router, completions.router, responses.router, health.router)
"""The routers that the lines of batches use."""


class _Application(FastAPI):
    """FastAPI, with the server's own `send` in the scope for `EventStream`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[DIRECT_SEND] = send
        try:
            await super().__call__(scope, receive, send)
        finally:
            # `send` holds the scope: without the cycle, the request is freed at its end.
            del scope[DIRECT_SEND]


def create_app(
    settings: Settings,
    engine: Engine,
    metrics: Metrics,
    registry: CollectorRegistry,
    callbacks: StartupCallbacks | None = None,
    audit: Audit | None = None,
    folder: Folder | None = None,
) -> FastAPI:
    """The application for an engine that has not started; the lifespan starts the engine.

    Without an `audit`, admin changes are recorded in memory only. Without a `folder`, that of the
    settings is opened, which raises `SettingError` if it cannot be used.
    """
    has_console = settings.console and pages.installed()
    key_limits = KeyLimits(
        settings.max_key_requests, settings.max_key_requests_per_minute, metrics.admission
    )
    audit = audit or Audit()
    audit.metrics = metrics.files
    state = AppState(
        *(settings, engine, metrics, registry, audit),
        *(Keyring(settings, metrics.files), key_limits, _tracing(settings)),
    )
    if (folder := folder or open_folder(settings.files_dir)) is not None:
        state.batches = Batches(folder, settings, metrics.batches, _line_application(state))
    app = _Application(
        title="Specgate",
        version=__version__,
        lifespan=lifespan,
        middleware=_middleware(state, has_console),
        openapi_url=None,  # a route of its own
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.specgate = state
    app.state.openapi_document = EncodedDocument(app)
    app.state.startup_callbacks = callbacks or StartupCallbacks()
    install_error_handlers(app)
    _add_routes(app, (*ROUTERS, console.router) if has_console else ROUTERS)
    return app


def _line_application(state: AppState) -> FastAPI:
    """What answers the lines of batches: the same routes, without what belongs to a connection."""
    app = FastAPI(
        middleware=[Middleware(RequestId), Middleware(ErrorBoundary)],
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.specgate = state
    install_error_handlers(app)
    _add_routes(app, LINE_ROUTERS)
    return app


def _add_routes(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Adds the routers' own routes: `include_router` would build each again, in 76 ms."""
    for router in routers:
        app.router.routes.extend(router.routes)


def _tracing(settings: Settings) -> "Tracing | None":
    if settings.otlp_traces_endpoint is None:
        return None
    # Its libraries are optional, and take time to import.
    from server.telemetry.tracing import Tracing

    return Tracing(settings.otlp_traces_endpoint)


def _middleware(state: AppState, has_console: bool) -> list[Middleware]:
    """From the outside in.

    A refusal by an inner one is logged and counted, has a request id, and can be read by a page of
    an allowed origin. A preflight has no key, so it is answered before keys are checked. The body
    of a request without a key, or above its key's limits, is never read.
    """
    settings, origins = state.settings, state.settings.allowed_origins
    return [
        Middleware(RequestId),
        *([Middleware(TraceRequests, tracer=state.tracing)] if state.tracing else []),
        Middleware(AccessLog, metrics=state.metrics),
        *([Middleware(Cors, origins=origins)] if origins else []),
        Middleware(ErrorBoundary),
        Middleware(
            AuthMiddleware, settings=settings, keyring=state.keyring, has_console=has_console
        ),
        Middleware(KeyLimit, limits=state.key_limits, refusal=state.refusal),
        Middleware(
            BodyLimit,
            settings=settings,
            reading=state.reading,
            max_file_bytes=None if settings.files_dir is None else settings.max_file_bytes,
        ),
    ]
