"""One run of the server: engine, application, terminal, signals and exit status."""

import asyncio
import gc
import socket
import ssl
from functools import partial
from typing import cast

import structlog
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, ProcessCollector

from engine_adapter.seam.errors import EngineConfigError, EngineError
from engine_adapter.seam.factory import create_engine
from engine_adapter.seam.types import EngineInfo
from server.app import create_app
from server.batches.folder import Folder
from server.commands import BAD_SETTING, FAILED, print_error
from server.commands.http_server import HttpServer
from server.commands.startup_display import StartupDisplay
from server.control.admin.audit import Audit
from server.http.connection import Connection
from server.http.connections import Connections
from server.http.tls import TlsServer
from server.lifespan import StartupCallbacks
from server.settings import Settings
from server.state import AppState
from server.telemetry.logs import count_failures
from server.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)


class ServerProcess:
    """One run of the server, from loading the engine to the exit status."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        display: StartupDisplay,
        audit: Audit,
        max_connections: int,
        tls: ssl.SSLContext | None = None,
        folder: Folder | None = None,
    ) -> None:
        self._settings = settings
        self._max_connections = max_connections
        self._tls = tls
        self._audit = audit
        self._folder = folder
        self._listener = listener
        self._display = display
        self._status = 0
        self._server: HttpServer | None = None

    def run(self) -> int:
        """Serves until a signal, or until the start has failed."""
        self._display.stage(f"Preparing the {self._settings.engine} engine")
        registry = CollectorRegistry()
        # CPU, memory and open files of the gateway; the engine's process is not in them.
        ProcessCollector(registry=registry)
        metrics = Metrics(registry)
        count_failures(metrics.files.log_failures.inc)
        settings = self._settings
        try:
            engine = create_engine(settings.engine, settings.engine_config(), registry, metrics)
        except EngineError as error:
            self._failed(error)
            return self._status
        callbacks = StartupCallbacks(self._display.stage, self._ready, self._failed)
        parts = (settings, engine, metrics, registry, callbacks, self._audit, self._folder)
        app = create_app(*parts)
        connections = Connections(settings, self._max_connections, metrics.connections)
        config, state = self._config(app, connections), cast(AppState, app.state.specgate)
        serve_tls = None if self._tls is None else partial(TlsServer, self._tls, connections)
        self._server = HttpServer(config, state, state.keyring.reload, serve_tls)
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._display.close()
        return self._status

    def _config(self, app: FastAPI, connections: Connections) -> uvicorn.Config:
        return uvicorn.Config(
            app,
            loop="uvloop",
            # uvicorn calls it as it would call the class.
            http=cast(type[asyncio.Protocol], partial(Connection, connections)),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            # The peer's address is used for authorization, so no header may change it.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=self._settings.idle_timeout_s,
        )

    def _ready(self, info: EngineInfo) -> None:
        # What exists now stays: the collector need not stop every request to look at it again. The
        # garbage among it, 200 objects, is not worth the second that a collection takes.
        gc.freeze()
        self._display.ready(info, self._listener.getsockname()[1])

    def _failed(self, error: Exception) -> None:
        self._display.close()
        self._status = print_start_error(error, self._settings)
        if self._server is not None:
            self._server.should_exit = True


def print_start_error(error: Exception, settings: Settings) -> int:
    """Prints why the engine did not start. Returns the exit status."""
    if isinstance(error, EngineConfigError):
        if error.setting in Settings.model_fields:
            print_error(f"{settings.written_name(error.setting)}: {error.message}")
        elif error.setting.isupper():  # a variable that vLLM reads
            print_error(str(error))
        else:
            print_error(f"{settings.written_name('engine_args')}: {error}")
        return BAD_SETTING
    if not isinstance(error, EngineError):
        log.error("unexpected_error", exc_info=error)
    print_error(f"the engine could not be started: {str(error) or repr(error)}")
    return FAILED
