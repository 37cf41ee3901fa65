"""A port that speaks TLS: connections are counted when they are accepted.

uvicorn and asyncio know a connection only when its handshake is complete, so those that never say
a word would be neither counted nor limited, until no descriptor is left.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress

from server.http.connection import Connection
from server.http.connections import Connections, Entry
from server.telemetry.connection_metrics import CloseReason

ACCEPTED_PER_PASS = 8
"""The most connections that are accepted in a pass of the event loop: a burst must not hold up the
connections that are open, nor fill the backlog while these are busy.
"""

RETRY_S = 0.1
"""Seconds until the port is tried again when no descriptor was free."""

NEVER_S = 1e6
"""The time of a connection's end. `Connection.check` knows whether its client still reads."""

_ACKNOWLEDGED = struct.Struct("120xQ")
"""`tcpi_bytes_acked` of Linux's `struct tcp_info`."""

NewConnection = Callable[..., Connection]


class TlsServer:
    """Accepts the connections of a port, and makes their handshakes.

    Args:
        listener: a listening socket.
        new_connection: makes a `Connection`; it is called with the argument `handshake`.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        connections: Connections,
        listener: socket.socket,
        new_connection: NewConnection,
    ) -> None:
        self.context = context
        self.connections = connections
        self.new_connection = new_connection
        self._listener: socket.socket | None = listener
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[Handshake, asyncio.Task[None]] = {}
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def is_serving(self) -> bool:
        """Whether it accepts connections; as in `asyncio.Server`."""
        return self._listener is not None

    def close(self) -> None:
        """Accepts no more connections, and ends the handshakes. The port stays to be closed."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener = None
        for handshake in self._handshakes:
            handshake.end()

    def _accept(self) -> None:
        """Accepts what has arrived, so that others are served between two parts of a burst."""
        assert self._listener is not None
        for _ in range(ACCEPTED_PER_PASS):
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # No descriptor is free. The look at all connections reports it.
                self._loop.remove_reader(self._listener)
                self._loop.call_later(RETRY_S, self._retry)
                return
            self._begin(client, address[0])

    def _begin(self, client: socket.socket, peer: str) -> None:
        """Begins the handshake of a connection, or closes it."""
        handshake = Handshake(self, client, peer)
        if self.connections.accepted(handshake, self._loop) is Entry.NONE:
            handshake.note(CloseReason.REFUSED)
            client.close()
            return
        task = self._loop.create_task(handshake.run())
        self._handshakes[handshake] = task
        task.add_done_callback(lambda _: self._handshakes.pop(handshake))

    def _retry(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept)


class Handshake:
    """A connection from its acceptance until it speaks TLS; then a `Connection` has its place."""

    def __init__(self, server: TlsServer, client: socket.socket, peer: str) -> None:
        self._server = server
        self._socket = client
        self._peer = peer
        self._was_ended = False

    async def run(self) -> None:
        """Makes the handshake."""
        server = self._server
        self._socket.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: server.new_connection(handshake=self),
                self._socket,
                ssl=server.context,
                ssl_handshake_timeout=server.connections.settings.header_timeout_s,
                ssl_shutdown_timeout=NEVER_S,
            )
        except ssl.SSLError as error:
            self._failed(CloseReason.BAD_HANDSHAKE, error=error.reason)
        except ConnectionAbortedError:
            self._failed(CloseReason.SLOW_HANDSHAKE)
        except OSError:
            pass  # The client has left, or the connection was ended here.
        finally:
            server.connections.lost(self)

    def give_way(self) -> bool:
        """See `Pending.give_way`."""
        self.note(CloseReason.REFUSED)
        self.end()
        return True

    def acknowledged(self) -> int | None:
        """See `Handshaking.acknowledged`."""
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)
            (num_bytes,) = _ACKNOWLEDGED.unpack(info)
        except (OSError, AttributeError, struct.error):
            return None
        return num_bytes or None

    def end(self) -> None:
        """Ends the connection: its handshake fails."""
        self._was_ended = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def note(self, reason: CloseReason, **fields: object) -> None:
        """Counts and logs that the server closes the connection."""
        now_s = asyncio.get_running_loop().time()
        self._server.connections.closing(reason, self._peer, now_s, **fields)

    def _failed(self, reason: CloseReason, **fields: object) -> None:
        if not self._was_ended:
            self.note(reason, **fields)
