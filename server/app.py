"""`create_app`: the only place where things are wired."""

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.middleware import Middleware

from engine_adapter.interface import Engine
from server import __version__
from server.control.audit import Audit
from server.errors import install_error_handlers
from server.http.auth import AuthMiddleware
from server.http.middleware import AccessLog, BodyLimit, ErrorBoundary, RequestId
from server.lifespan import Hooks, lifespan
from server.routes import admin, chat, completions, health, lora, metrics, models, tokenize
from server.settings import Settings
from server.state import State
from server.telemetry.metrics import Metrics

ROUTERS = (
    chat.router,
    completions.router,
    models.router,
    tokenize.router,
    health.router,
    metrics.router,
    admin.router,
    lora.router,
)
"""Every route of the server, by family."""


def create_app(
    settings: Settings,
    engine: Engine,
    metrics: Metrics,
    registry: CollectorRegistry,
    hooks: Hooks | None = None,
    audit: Audit | None = None,
) -> FastAPI:
    """The application over an engine that is not yet started; its lifespan starts it.

    Without an `audit`, admin changes are kept in memory alone.
    """
    app = FastAPI(
        title="Specgate",
        version=__version__,
        lifespan=lifespan,
        middleware=[
            # From the outside in. A refusal by the inner ones is logged, counted and has its
            # id; what is not authenticated never gets its body read.
            Middleware(RequestId),
            Middleware(AccessLog, metrics=metrics),
            Middleware(ErrorBoundary),
            Middleware(AuthMiddleware, settings=settings),
            Middleware(BodyLimit, max_bytes=settings.max_body_bytes),
        ],
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.specgate = State(settings, engine, metrics, registry, audit or Audit())
    app.state.hooks = hooks or Hooks()
    install_error_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    return app
