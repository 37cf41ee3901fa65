"""A made transport, connections of one server on it, and applications that answer on them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from server.http.connection import Connection
from server.http.connections import Connections
from server.settings.http_settings import HttpSettings
from server.telemetry.connection_metrics import ConnectionMetrics
from server.telemetry.metric_maker import MetricMaker

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
App = Callable[[Any, Any, Any], Awaitable[None]]


class Wire(asyncio.Transport):
    """A transport whose client reads when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.unsent = 0
        self.high = 0
        self.aborted = self.closing = False
        self.reads = True
        self.protocol: Connection | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 5000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return 0 if self.aborted else self.unsent

    def write(self, data: Any) -> None:
        if self.aborted:
            return
        if self.reads:
            self.sent += data
            return
        self.unsent += len(data)
        if self.unsent > self.high and self.protocol is not None:
            self.protocol.pause_writing()

    def read(self, num_bytes: int) -> None:
        """The client reads so much of what was unsent."""
        self.unsent -= num_bytes

    def pause_reading(self) -> None:
        """Nothing reads by itself here."""

    def resume_reading(self) -> None:
        """Nothing reads by itself here."""

    def is_closing(self) -> bool:
        return self.closing or self.aborted

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True

    @property
    def error(self) -> tuple[int, dict[str, Any]]:
        """Status and error of the answer."""
        head, _, body = self.sent.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), json.loads(body)["error"]


class Bench:
    """Connections of one server."""

    def __init__(self, app: App, limit: int = 10, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        metrics = ConnectionMetrics(MetricMaker(self.registry))
        made = HttpSettings(**settings)
        self.connections = Connections(made, limit, metrics, exhausted=lambda: False)
        self._config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
        self._config.load()
        self.state = ServerState()

    def connect(self) -> tuple[Connection, Wire]:
        """A new connection."""
        connection = Connection(
            self.connections, config=self._config, server_state=self.state, app_state={}
        )
        wire = Wire()
        wire.protocol = connection
        connection.connection_made(wire)
        return connection, wire

    async def ask(self) -> tuple[Connection, Wire]:
        """A connection whose client has sent a request; the application has begun to answer."""
        connection, wire = self.connect()
        connection.data_received(GET)
        await settle()
        return connection, wire

    def later(self, seconds: float) -> None:
        """Looks at all connections as if so many seconds had passed."""
        self.connections.check(asyncio.get_running_loop().time() + seconds)

    def closed(self, reason: str) -> float | None:
        """How many connections the server has closed for a reason."""
        name = "specgate_connections_closed_total"
        return self.registry.get_sample_value(name, {"reason": reason})


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, in one piece."""
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def slow(scope: Any, receive: Any, send: Any) -> None:
    """Does not answer before the test ends."""
    await asyncio.sleep(60)


class Large:
    """An application whose answers are whole, and larger than what may be unsent of a stream."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        headers = [(b"content-length", b"9000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * 9000})


class Streaming:
    """An application whose answer is a stream, and what became of it."""

    def __init__(self) -> None:
        self.written = 0
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        watching = asyncio.ensure_future(self._watch(receive))
        for _ in range(10_000):
            await send({"type": "http.response.body", "body": b"x" * 100, "more_body": True})
            self.written += 1
            await asyncio.sleep(0)
            if self.left.is_set():
                break
        watching.cancel()

    async def _watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


async def settle() -> None:
    """Lets the application do what it can."""
    for _ in range(5):
        await asyncio.sleep(0)
