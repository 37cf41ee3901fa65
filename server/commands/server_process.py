"""One run of the server: engine, application, terminal, signals and exit status."""

import signal
import socket
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from engine_adapter.errors import EngineConfigError, EngineError
from engine_adapter.factory import create_engine
from engine_adapter.types import EngineInfo
from server.app import create_app
from server.commands import BAD_SETTING, FAILED, complain
from server.commands.startup_display import Progress
from server.control.audit import Audit
from server.lifespan import Hooks
from server.settings import Settings, flag
from server.state import State
from server.telemetry.metrics import Metrics

HTTP_KEEP_ALIVE_S = 65
"""Seconds an idle connection stays open: longer than load balancers keep theirs, so that none
sends a request into a connection that is just being closed."""

log = structlog.get_logger(__name__)


class _Server(uvicorn.Server):
    """Uvicorn's server, which says that it was told to stop."""

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        super().__init__(config)
        self._state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Gives up a drain first: what it held has the same time to finish as the others."""
        loaded = self._state.loaded
        if loaded is not None:
            loaded.switcher.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to stop; a second Ctrl-C does not wait for requests."""
        log.info("stopping", signal=signal.Signals(sig).name)
        super().handle_exit(sig, frame)


class Service:
    """One run of the server: engine, application, terminal and exit status."""

    def __init__(
        self, settings: Settings, listener: socket.socket, progress: Progress, audit: Audit
    ) -> None:
        self._settings = settings
        self._audit = audit
        self._listener = listener
        self._progress = progress
        self._status = 0
        self._server: _Server | None = None

    def run(self) -> int:
        """Serves until a signal, or until the start has failed."""
        self._progress.stage(f"Preparing the {self._settings.engine} engine")
        registry = CollectorRegistry()
        metrics = Metrics(registry)
        settings = self._settings
        try:
            engine = create_engine(settings.engine, settings.engine_config(), registry, metrics)
        except EngineError as error:
            self._failed(error)
            return self._status
        hooks = Hooks(self._progress.stage, self._ready, self._failed)
        app = create_app(settings, engine, metrics, registry, hooks, self._audit)
        self._server = _Server(self._config(app), app.state.specgate)
        _end_quietly_after_a_signal()
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._progress.close()
        return self._status

    def _config(self, app: FastAPI) -> uvicorn.Config:
        return uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            # The peer's address decides who may switch: no header may change it.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=HTTP_KEEP_ALIVE_S,
            timeout_graceful_shutdown=self._settings.shutdown_timeout_s,
        )

    def _ready(self, info: EngineInfo) -> None:
        self._progress.ready(info, self._listener.getsockname()[1])

    def _failed(self, error: Exception) -> None:
        self._progress.close()
        self._status = complain_of_start(error)
        if self._server is not None:
            self._server.should_exit = True


def complain_of_start(error: Exception) -> int:
    """Says why the engine did not start. Returns the exit status."""
    if isinstance(error, EngineConfigError):
        reason = str(error).removeprefix(f"{error.setting}: ")
        if error.setting in Settings.model_fields:
            complain(f"{flag(error.setting)}: {reason}")
        else:
            complain(f"{flag('engine_args')}: {error}")
        return BAD_SETTING
    if not isinstance(error, EngineError):
        log.error("unexpected_error", exc_info=error)
    complain(f"the engine could not be started: {str(error) or repr(error)}")
    return FAILED


def _end_quietly_after_a_signal() -> None:
    """Uvicorn raises the signal again once it has stopped; that is to end nothing more."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
