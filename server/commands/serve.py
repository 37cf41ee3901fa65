"""`specgate serve`: from flags to a running server, and to a clean end."""

import os
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType

import structlog
import uvicorn
from prometheus_client import CollectorRegistry

from engine_adapter.errors import EngineConfigError
from engine_adapter.factory import create_engine
from engine_adapter.interface import EngineInfo
from server.app import create_app
from server.commands.progress import Progress
from server.lifespan import Hooks
from server.logs import configure_logs
from server.metrics import Metrics
from server.settings import Settings, flag
from server.settings_sources import SettingsError, load_settings, unknown_variables

BAD_SETTING, FAILED = 2, 1
"""Exit statuses: a setting cannot work; the engine could not be started."""

BACKLOG = 2048
"""Connections that may wait to be accepted."""

HTTP_KEEP_ALIVE_S = 65
"""Seconds an idle connection stays open: longer than load balancers keep theirs, so that none
sends a request into a connection that is just being closed."""

log = structlog.get_logger(__name__)


def serve(argv: Sequence[str]) -> int:
    """Serves until it is told to stop. Returns the process's exit status."""
    try:
        settings = load_settings(argv, os.environ)
        listener = bind(settings)
    except SettingsError as error:
        for line in error.lines:
            _complain(line)
        return BAD_SETTING
    with listener:
        configure_logs(settings.log_level, json=settings.log_json, access=settings.access_log)
        for line in unknown_variables(os.environ):
            log.warning("unknown_variable", detail=line)
        return _Service(settings, listener).run()


def bind(settings: Settings) -> socket.socket:
    """Takes the port before anything loads. Raises `SettingsError`."""
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise SettingsError(f"--host: cannot resolve {host!r}: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Without it another server that is still loading could bind the same port.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if isinstance(error, PermissionError) or "in use" in str(error):
            hint = "choose another one, or 0 for a free one"
            raise SettingsError(f"--port: {port} on {host}: {error.strerror}; {hint}") from None
        raise SettingsError(f"--host: cannot listen on {host}: {error.strerror}") from None
    return listener


class _Server(uvicorn.Server):
    """Uvicorn's server, which says that it was told to stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to stop; a second Ctrl-C does not wait for requests."""
        log.info("stopping", signal=signal.Signals(sig).name)
        super().handle_exit(sig, frame)


class _Service:
    """One run of the server: engine, application, terminal and exit status."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._progress = Progress(settings)
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
        except EngineConfigError as error:
            self._failed(error)
            return self._status
        hooks = Hooks(self._progress.stage, self._ready, self._failed)
        self._server = _Server(self._config(create_app(settings, engine, metrics, registry, hooks)))
        _end_quietly_after_a_signal()
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._progress.close()
        return self._status

    def _config(self, app: object) -> uvicorn.Config:
        return uvicorn.Config(
            app,  # type: ignore[arg-type]
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
            timeout_graceful_shutdown=max(1, round(self._settings.shutdown_timeout_s)),
        )

    def _ready(self, info: EngineInfo) -> None:
        self._progress.ready(info, self._listener.getsockname()[1])

    def _failed(self, error: Exception) -> None:
        self._progress.close()
        if isinstance(error, EngineConfigError):
            reason = str(error).removeprefix(f"{error.setting}: ")
            _complain(f"{flag(error.setting)}: {reason}")
            self._status = BAD_SETTING
        else:
            _complain(f"the engine could not be started: {error}")
            self._status = FAILED
        if self._server is not None:
            self._server.should_exit = True


def _end_quietly_after_a_signal() -> None:
    """Uvicorn raises the signal again once it has stopped; that is to end nothing more."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def _complain(line: str) -> None:
    print(f"specgate: error: {line}", file=sys.stderr, flush=True)
