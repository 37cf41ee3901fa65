"""A connection's limits and deadlines, on a made transport and at given times."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from uvicorn.server import ServerState

from server.http.connection import MAX_PIPELINED, SPARE_TIMEOUT_S, Connection
from server.http.connections import Connections
from server.http.descriptors import SPARE
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
        return self.unsent

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
        connection = Connection(
            self.connections, config=self._config, server_state=self.state, app_state={}
        )
        wire = Wire()
        wire.protocol = connection
        connection.connection_made(wire)
        return connection, wire

    def later(self, seconds: float) -> None:
        """Looks at all connections as if so many seconds had passed."""
        self.connections.check(asyncio.get_running_loop().time() + seconds)

    def closed(self, reason: str) -> float | None:
        name = "specgate_connections_closed_total"
        return self.registry.get_sample_value(name, {"reason": reason})


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, in one piece."""
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_is_answered_and_the_next_one_too() -> None:
    bench = Bench(answer)
    connection, wire = bench.connect()
    for _ in range(2):
        connection.data_received(GET)
        await settle()
    assert wire.sent.count(b"HTTP/1.1 200 OK") == 2
    assert not wire.is_closing()


async def test_a_connection_without_a_request_is_closed_after_its_time() -> None:
    bench = Bench(answer, idle_timeout_s=65)
    _, wire = bench.connect()
    bench.later(64)
    assert not wire.closing
    bench.later(66)
    assert wire.closing
    assert wire.sent == b""
    assert bench.closed("idle") == 1


async def test_slow_headers_get_a_408() -> None:
    bench = Bench(answer, header_timeout_s=10, idle_timeout_s=65)
    connection, wire = bench.connect()
    connection.data_received(GET)
    await settle()
    wire.sent = b""
    connection.data_received(b"GET / HTTP/1.1\r\nx-slow: ")
    bench.later(9)
    connection.data_received(b"a")
    assert not wire.closing
    bench.later(11)
    assert wire.closing
    status, error = wire.error
    assert (status, error["code"]) == (408, "slow_client")
    assert bench.closed("slow_headers") == 1


async def test_empty_lines_are_no_request_and_give_no_time() -> None:
    bench = Bench(answer, idle_timeout_s=65)
    connection, wire = bench.connect()
    connection.data_received(b"\r\n")
    bench.later(66)
    assert wire.closing


async def test_a_body_that_nobody_reads_any_more_has_a_deadline() -> None:
    bench = Bench(answer, body_timeout_s=10)
    connection, wire = bench.connect()
    connection.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nab")
    await settle()
    assert b"200 OK" in wire.sent
    bench.later(9)
    assert not wire.closing
    bench.later(11)
    assert wire.closing
    assert bench.closed("slow_body") == 1


async def test_no_deadline_runs_while_the_server_makes_an_answer() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(60)

    bench = Bench(slow)
    connection, wire = bench.connect()
    connection.data_received(GET)
    await settle()
    bench.later(10_000)
    assert not wire.is_closing()
    connection.connection_lost(None)


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /" + b"x" * 200 + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
        (b"GET / HTTP/1.1\r\na: " + b"x" * 1000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 11 + b"\r\n", 431, "headers_too_large"),
        # Not complete, so that the parser has passed on nothing yet.
        (b"GET /" + b"x" * 2000, 414, "url_too_long"),
        (b"GET / HTTP/1.1\r\na: b\r\nc: " + b"x" * 2000, 431, "headers_too_large"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nt: " + b"x" * 2000,
         431, "headers_too_large"),
        (b"\x00\x01\x02\r\n\r\n", 400, "invalid_http"),
    ],
    ids=["url", "header", "number", "url-cut", "header-cut", "trailer-cut", "not-http"],
)  # fmt: skip
async def test_what_is_too_large_is_refused_and_closed(head: bytes, status: int, code: str) -> None:
    bench = Bench(answer, max_url_bytes=100, max_header_bytes=900, max_headers=10)
    connection, wire = bench.connect()
    with capture_logs() as lines:
        for at in range(0, len(head), 64):
            if not wire.closing:
                connection.data_received(head[at : at + 64])
                await settle()
    assert wire.closing
    wire.sent = wire.sent.removeprefix(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    found, error = wire.error
    assert (found, error["code"]) == (status, code)
    reason = "bad_request" if status == 400 else "too_large"
    assert bench.closed(reason) == 1
    assert [(line["event"], line["reason"], line["peer"]) for line in lines] == [
        ("connection_closed", reason, "192.0.2.1")
    ]


async def test_headers_up_to_the_limits_are_accepted() -> None:
    bench = Bench(answer, max_url_bytes=100, max_header_bytes=900, max_headers=10)
    connection, wire = bench.connect()
    connection.data_received(b"GET /" + b"x" * 99 + b" HTTP/1.1\r\n" + b"a: b\r\n" * 10 + b"\r\n")
    await settle()
    connection.data_received(b"GET / HTTP/1.1\r\na: " + b"x" * 860)
    connection.data_received(b"x" * 39 + b"\r\n\r\n")
    await settle()
    assert wire.sent.count(b"200 OK") == 2


async def test_many_small_chunks_of_a_body_are_no_large_headers() -> None:
    read = bytearray()

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        while True:
            part = await receive()
            read.extend(part["body"])
            if not part["more_body"]:
                break
        await answer(scope, receive, send)

    bench = Bench(reads, max_header_bytes=100)
    connection, wire = bench.connect()
    connection.data_received(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(100):
        connection.data_received(b"1\r\na\r\n")
        await settle()
    connection.data_received(b"0\r\n\r\n")
    await settle()
    assert read == b"a" * 100
    assert b"200 OK" in wire.sent


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


async def test_a_stream_that_is_not_read_is_aborted_at_its_limit() -> None:
    app = Streaming()
    bench = Bench(app, max_unsent_bytes=5000)
    connection, wire = bench.connect()
    connection.data_received(GET)
    await settle()
    wire.reads = False
    with capture_logs() as lines:
        await asyncio.wait_for(app.left.wait(), 30)
    assert wire.aborted
    assert 5000 < wire.unsent < 5000 + 200
    assert app.written < 100
    assert bench.closed("unsent") == 1
    (line,) = [line for line in lines if line["event"] == "connection_closed"]
    assert (line["reason"], line["unsent_bytes"]) == ("unsent", wire.unsent)
    connection.connection_lost(None)


async def test_a_whole_answer_may_be_larger_than_the_limit_of_streams() -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"9000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * 9000})

    bench = Bench(large, max_unsent_bytes=5000, write_timeout_s=10)
    connection, wire = bench.connect()
    wire.reads = False
    connection.data_received(GET)
    await settle()
    assert wire.unsent > 9000
    assert not wire.is_closing()
    bench.later(0)
    bench.later(9)
    wire.read(1000)
    bench.later(11)
    bench.later(20)
    assert not wire.is_closing()
    bench.later(22)
    assert wire.aborted
    assert bench.closed("not_read") == 1


async def test_a_client_that_reads_nothing_is_aborted_although_the_stream_goes_on() -> None:
    app = Streaming()
    bench = Bench(app, write_timeout_s=10)
    connection, wire = bench.connect()
    connection.data_received(GET)
    await settle()
    wire.reads = False
    await settle()
    assert wire.unsent
    bench.later(1)
    await settle()
    bench.later(12)
    assert wire.aborted
    connection.connection_lost(None)


async def test_requests_sent_ahead_of_answers_that_are_not_read_are_not_run() -> None:
    runs = 0

    async def large(scope: Any, receive: Any, send: Any) -> None:
        nonlocal runs
        runs += 1
        headers = [(b"content-length", b"9000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * 9000})

    bench = Bench(large, max_unsent_bytes=5000)
    connection, wire = bench.connect()
    wire.reads = False
    connection.data_received(GET + GET)
    await settle()
    assert runs == 1
    assert wire.aborted


async def test_few_requests_may_be_sent_ahead() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(60)

    bench = Bench(slow)
    connection, wire = bench.connect()
    connection.data_received(GET * (MAX_PIPELINED + 1))
    assert not wire.is_closing()
    connection.data_received(GET)
    assert wire.closing
    assert wire.sent == b""
    connection.connection_lost(None)


async def test_a_client_that_leaves_ends_its_running_request_although_it_sent_another() -> None:
    app = Streaming()
    bench = Bench(app)
    connection, _ = bench.connect()
    connection.data_received(GET + GET)
    await settle()
    connection.connection_lost(None)
    await settle()
    assert app.left.is_set()


async def test_above_the_limit_probes_are_answered_and_requests_refused() -> None:
    bench = Bench(answer, limit=1)
    bench.connect()
    probe, probe_wire = bench.connect()
    probe.data_received(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    other, other_wire = bench.connect()
    other.data_received(GET)
    with capture_logs() as lines:
        await settle()
    assert b"200 OK" in probe_wire.sent
    status, error = other_wire.error
    assert (status, error["code"], error["type"]) == (503, "too_many_connections", "server_error")
    for wire in (probe_wire, other_wire):
        assert b"connection: close" in wire.sent.lower()
        assert wire.closing
    assert b"retry-after: 5" in other_wire.sent.lower()
    assert bench.closed("refused") == 1
    assert lines == []  # written when the request was parsed


async def test_far_above_the_limit_connections_are_closed_at_once() -> None:
    bench = Bench(answer, limit=1)
    wires = [bench.connect()[1] for _ in range(1 + SPARE + 2)]
    assert [wire.aborted for wire in wires] == [False] * (1 + SPARE) + [True] * 2
    assert bench.closed("refused") == 2
    assert bench.registry.get_sample_value("specgate_connections") == 1 + SPARE + 2
    assert bench.registry.get_sample_value("specgate_connections_limit") == 1


async def test_a_connection_above_the_limit_has_little_time() -> None:
    bench = Bench(answer, limit=1)
    _, first = bench.connect()
    _, second = bench.connect()
    bench.later(SPARE_TIMEOUT_S + 1)
    assert (first.closing, second.closing) == (False, True)


async def test_a_connection_that_got_a_place_keeps_it() -> None:
    bench = Bench(answer, limit=1)
    first, _ = bench.connect()
    second, wire = bench.connect()
    first.connection_lost(None)
    second.data_received(GET)
    await settle()
    bench.later(SPARE_TIMEOUT_S + 1)
    assert not wire.closing
    assert bench.closed("refused") == 0
    bench.connect()  # now this one is above the limit
    second.data_received(GET)
    await settle()
    assert wire.sent.count(b"200 OK") == 2


async def test_connections_above_the_limit_take_no_place_of_those_below_it() -> None:
    bench = Bench(answer, limit=2)
    (first, _), (second, _) = bench.connect(), bench.connect()
    for _ in range(SPARE):
        bench.connect()
    first.connection_lost(None)
    third, wire = bench.connect()
    third.data_received(GET)
    await settle()
    assert b"200 OK" in wire.sent
    fourth, other = bench.connect()
    fourth.data_received(GET)
    await settle()
    assert (other.aborted, wire.aborted) == (True, False)
    second.connection_lost(None)
    third.data_received(GET)
    await settle()
    assert wire.sent.count(b"200 OK") == 2


async def test_a_connection_that_got_a_place_meanwhile_is_served() -> None:
    bench = Bench(answer, limit=1)
    first, _ = bench.connect()
    second, wire = bench.connect()
    first.connection_lost(None)
    second.data_received(GET)
    await settle()
    assert b"200 OK" in wire.sent
    assert bench.registry.get_sample_value("specgate_connections") == 1
