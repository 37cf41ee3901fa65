"""Uvicorn's server with Specgate's signals and its stop.

A stop has four stages, which together take `shutdown_timeout_s` and the engine's end:

1. `/ready` is 503, so that balancers leave. Requests are accepted for `shutdown_delay_s`.
2. The port is closed, and idle connections are. Running requests get the rest of
   `shutdown_timeout_s`; those whose body has not arrived get `BODY_GRACE_S` of it.
3. What still runs fails with the error `stopping`, and gets `LAST_WORDS_S` to send it.
4. The lifespan ends: the engine stops.

A second signal begins stage 3 at once.
"""

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import structlog
import uvicorn

from server.commands.terminal import Terminal
from server.http.tls import NewConnection, TlsServer
from server.state import AppState

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

BODY_GRACE_S = 5.0
"""Seconds after the port is closed in which the rest of a body must arrive."""

LAST_WORDS_S = 2.0
"""Seconds in which a request that was ended must have sent its error."""

_POLL_S = 0.05

log = structlog.get_logger(__name__)


class HttpServer(uvicorn.Server):
    """One HTTP server. It runs on the main thread, which gets the signals.

    Args:
        config: uvicorn's; its own graceful time-out is not used.
        state: it is told when the server stops.
        reload: called at SIGHUP.
        serve_tls: accepts the connections of a port that speaks TLS; `None` for one that does not.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: AppState,
        reload: Callable[[], object],
        serve_tls: Callable[[socket.socket, NewConnection], TlsServer] | None = None,
    ) -> None:
        super().__init__(config)
        self._serve_tls = serve_tls
        self._state = state
        self._reload = reload
        self._told_at: float | None = None
        self._hurry = False
        self._terminal = Terminal()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals while the server runs; afterwards they are ignored, since it ends."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        try:
            yield
        finally:
            for number in (*STOP_SIGNALS, signal.SIGHUP):
                loop.remove_signal_handler(number)
                signal.signal(number, lambda *_: None)

    def stop(self, number: int) -> None:
        """Begins to stop; a second time it no longer waits for requests."""
        name = signal.Signals(number).name
        if self._told_at is None:
            log.info("stopping", signal=name)
            self._begin_stop()
        elif not self._hurry:
            log.warning("stopping_at_once", signal=name)
            self._hurry = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the lifespan and opens the port."""
        if self._serve_tls is None:
            await super().startup(sockets)
            return
        await super().startup([])
        new_connection = partial(
            cast(NewConnection, self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listener in sockets or ():
            self.servers.append(cast(asyncio.Server, self._serve_tls(listener, new_connection)))

    async def on_tick(self, counter: int) -> bool:
        """Ends the first stage of a stop."""
        if self._told_at is not None:
            served_s = time.monotonic() - self._told_at
            if self._hurry or served_s >= self._state.settings.shutdown_delay_s:
                self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The other stages of a stop."""
        self._begin_stop()
        assert self._told_at is not None
        ends_at = self._told_at + self._state.settings.shutdown_timeout_s
        self._close_port(sockets or [])
        await self._until_done(min(ends_at, time.monotonic() + BODY_GRACE_S))
        for task in list(self._state.reading):
            task.cancel()
        await self._until_done(ends_at)
        if self._busy:
            await self._fail_requests()
        await self.lifespan.shutdown()

    def _begin_stop(self) -> None:
        if self._told_at is None:
            self._told_at = time.monotonic()
            self._state.leave()

    def _close_port(self, sockets: list[socket.socket]) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()

    async def _fail_requests(self) -> None:
        tasks = list(self.server_state.tasks)
        log.warning("requests_ended", requests=len(tasks), code="stopping")
        for task in tasks:
            task.cancel()
        self._hurry = False
        await self._until_done(time.monotonic() + LAST_WORDS_S)
        for connection in list(self.server_state.connections):
            # Its client does not read.
            connection.transport.abort()
        await self._until_done(time.monotonic() + LAST_WORDS_S)

    @property
    def _busy(self) -> bool:
        return bool(self.server_state.connections or self.server_state.tasks)

    async def _until_done(self, ends_at: float) -> None:
        """Waits for all requests and connections to end, until `ends_at` or a second signal."""
        while self._busy and not self._hurry and time.monotonic() < ends_at:  # noqa: ASYNC110
            # uvicorn has no event for it.
            await asyncio.sleep(_POLL_S)

    def _hang_up(self) -> None:
        if self._terminal.was_closed:
            # Its terminal was closed; a reload is asked for by another process.
            self.stop(signal.SIGHUP)
        else:
            self._reload()
