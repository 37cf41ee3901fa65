"""A connection's requests and its deadlines, on a made transport and at given times."""

import weakref

from server.http.connection import MAX_PIPELINED
from tests.server.http.wire import GET, Bench, Streaming, Wire, answer, settle, slow


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
    connection, wire = await bench.ask()
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


async def test_empty_lines_do_not_begin_a_request_and_give_no_time() -> None:
    bench = Bench(answer, idle_timeout_s=65)
    connection, wire = bench.connect()
    connection.data_received(b"\r\n")
    bench.later(66)
    assert wire.closing


async def test_a_body_that_is_not_read_any_more_has_a_deadline() -> None:
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
    bench = Bench(slow)
    connection, wire = await bench.ask()
    bench.later(10_000)
    assert not wire.is_closing()
    connection.connection_lost(None)


async def test_few_requests_may_be_sent_ahead() -> None:
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


async def test_a_connection_is_freed_at_its_end_without_the_collector(no_collector: None) -> None:
    streaming = Streaming()
    for app in (answer, streaming):
        bench = Bench(app)
        connection, wire = await bench.ask()
        connection.data_received(GET)
        await settle()
        freed = weakref.ref(connection)
        connection.connection_lost(None)
        _forget(wire)
        del connection
        await settle()
        assert freed() is None, app
    assert streaming.left.is_set()


def _forget(wire: Wire) -> None:
    """What a transport does after `connection_lost`."""
    wire.protocol = None
