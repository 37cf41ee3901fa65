"""A gateway on the fake engine behind a real port, in a thread of the test's process."""

import asyncio
import socket
import threading
import time
from functools import partial
from typing import Any, cast

import uvicorn

from engine_adapter.fake.engine import FakeEngine
from server.http.connection import Connection
from server.http.connections import Connections
from server.http.descriptors import default_connections
from server.state import AppState, Runtime
from tests.server.gateway import build

ADMIN_KEY = "sk-fleet-admin"
"""The admin key of the servers of `start_server`."""

START_S = 120
"""The longest that a start may take, on a machine that does other work too."""


class ThreadedServer:
    """A server in a thread, its address, and its engine.

    Args:
        port: where it listens; 0 takes a free port.
        settings: as for `build`.
    """

    def __init__(self, port: int = 0, **settings: Any) -> None:
        app, engine, self.registry = build(**settings)
        self.engine = cast(FakeEngine, engine)
        self._state: AppState = app.state.specgate
        made = self._state.settings
        limit = made.max_connections or default_connections(1024)
        connections = Connections(made, limit, self._state.metrics.connections)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=cast(type[asyncio.Protocol], partial(Connection, connections)),
                log_config=None,
                access_log=False,
                lifespan="on",
                timeout_keep_alive=made.idle_timeout_s,
                timeout_graceful_shutdown=2,
            )
        )
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "ThreadedServer":
        """Starts it and waits until it serves."""
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._state.ready:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        return self

    @property
    def runtime(self) -> Runtime:
        """The objects that exist since the engine started."""
        assert self._state.runtime is not None
        return self._state.runtime

    def stop(self) -> None:
        """Stops it as a signal does, and frees the port. Safe to call twice."""
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server did not stop"
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))
