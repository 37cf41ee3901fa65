"""What Ray Serve runs: `import_path: server.ray_serve.deployment:app` in a Serve config file."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, ProcessCollector
from ray import serve
from starlette.types import ASGIApp

from engine_adapter.seam.factory import create_engine
from server.app import create_app
from server.commands.serve import open_audit
from server.http.auth import OnlyThisMachine
from server.ray_serve.fleet import ServeFleet
from server.ray_serve.routes import serve_fleet
from server.ray_serve.user_config import UserConfigError, read_user_config
from server.settings import Settings
from server.settings.keys import Role
from server.settings.sources import forget_keys, settings_in
from server.state import AppState
from server.telemetry.logs import configure_logs
from server.telemetry.metrics import Metrics

WHERE = "args of the Serve application"

log = structlog.get_logger(__name__)


class StartFailed(RuntimeError):
    """The replica's engine did not start."""


class EngineGivenUp(RuntimeError):
    """No engine of the replica serves, and none will again; the message says why."""


@serve.deployment(
    name="specgate",
    # Specgate has a queue of its own, with limits and an order; Serve would hold requests back.
    max_ongoing_requests=10_000,
    graceful_shutdown_timeout_s=120,
    health_check_period_s=5,
)
@serve.ingress()
class Specgate:
    """One replica: the application that `specgate serve` runs, as a member of the fleet."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        settings = settings_in(args, WHERE, os.environ)
        forget_keys(os.environ)
        configure_logs(settings.log_level, json=settings.log_json, access=settings.access_log)
        self._application = _application(settings)
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, context.app_name)
        state: AppState = self._application.state.specgate
        self._fleet = ServeFleet(context.replica_tag, state, handle)
        serve_fleet(self._application, self._fleet)
        self._serves_one = self._application.router.lifespan_context
        self._application.router.lifespan_context = self._lifespan

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """What Serve calls for every request."""
        return self._application

    async def reconfigure(self, user_config: Any) -> None:
        """Serve's way to tell every replica: see `UserConfig`.

        A `user_config` that cannot work is logged and changes nothing: if this raised, Serve would
        end replicas that serve.
        """
        try:
            await self._fleet.declare(read_user_config(user_config))
        except UserConfigError as error:
            log.error("user_config_refused", reason=str(error))

    async def fleet_call(self, method: str, *arguments: Any) -> tuple[str, Any]:
        """See `ServeFleet.call`."""
        return await self._fleet.call(method, *arguments)

    async def check_health(self) -> None:
        """Raises if no engine serves and only a new replica can bring one back."""
        state: AppState = self._application.state.specgate
        if (reason := state.why_given_up) is not None:
            raise EngineGivenUp(reason)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Serves from the time on at which the engine runs and has the fleet's method."""
        state: AppState = app.state.specgate
        async with self._serves_one(app):
            await state.start_ended.wait()
            if state.runtime is None:
                raise StartFailed(str(state.startup_error)) from state.startup_error
            await self._fleet.begin()
            try:
                yield
            finally:
                await self._fleet.end()


def _application(settings: Settings) -> FastAPI:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = Metrics(registry)
    engine = create_engine(settings.engine, settings.engine_config(), registry, metrics)
    application = create_app(settings, engine, metrics, registry, audit=open_audit(settings))
    if not settings.insecure and not settings.keys_at_start.has(Role.API):
        application.add_middleware(OnlyThisMachine)
    return application


def app(args: dict[str, Any]) -> serve.Application:
    """The application of a Serve config file; `args` are settings, as a YAML file has them.

    Raises:
        SettingsError: a setting is unknown or cannot work.
    """
    settings_in(args, WHERE, os.environ)
    # mypy knows nothing of what a decorator makes of a class.
    return Specgate.bind(args)  # type: ignore[attr-defined]
