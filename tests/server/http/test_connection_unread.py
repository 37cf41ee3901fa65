"""Clients that do not read their answers, on a made transport and at given times."""

import asyncio

from structlog.testing import capture_logs

from tests.server.http.wire import GET, Bench, Large, Streaming, settle


async def test_a_stream_that_is_not_read_is_aborted_at_its_limit() -> None:
    app = Streaming()
    bench = Bench(app, max_unsent_bytes=5000)
    connection, wire = await bench.ask()
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
    bench = Bench(Large(), max_unsent_bytes=5000, write_timeout_s=10)
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


async def test_a_client_that_reads_nothing_is_aborted_although_the_stream_has_not_ended() -> None:
    app = Streaming()
    bench = Bench(app, write_timeout_s=10)
    connection, wire = await bench.ask()
    wire.reads = False
    await settle()
    assert wire.unsent
    bench.later(1)
    await settle()
    bench.later(12)
    assert wire.aborted
    connection.connection_lost(None)


async def test_requests_sent_ahead_of_answers_that_are_not_read_are_not_run() -> None:
    app = Large()
    bench = Bench(app, max_unsent_bytes=5000)
    connection, wire = bench.connect()
    wire.reads = False
    connection.data_received(GET + GET)
    await settle()
    assert app.runs == 1
    assert wire.aborted


async def test_all_that_is_unread_is_bounded_and_the_largest_part_of_it_ends_first() -> None:
    bench = Bench(Large(), max_unsent_bytes=100_000, max_all_unsent_bytes=20_000)
    wires = []
    for left in (5000, 9000, 2000, 8000):
        connection, wire = bench.connect()
        wire.reads = False
        connection.data_received(GET)
        await settle()
        wire.read(wire.unsent - left)
        wires.append(wire)
    with capture_logs() as lines:
        bench.later(0)
    assert [wire.aborted for wire in wires] == [False, True, False, False]
    assert bench.closed("all_unsent") == 1
    assert [line["unsent_bytes"] for line in lines] == [9000]
    bench.later(1)
    assert bench.closed("all_unsent") == 1


async def test_streams_that_are_not_read_are_bounded_together() -> None:
    bench = Bench(Streaming(), max_unsent_bytes=10**9, max_all_unsent_bytes=5000)
    wires = []
    for _ in range(10):
        connection, wire = await bench.ask()
        wire.reads = False
        await settle()
        wires.append((connection, wire))
    bench.later(0)
    assert sum(wire.unsent for _, wire in wires if not wire.aborted) <= 5000
    assert sum(wire.aborted for _, wire in wires) == bench.closed("all_unsent")
    assert any(wire.aborted for _, wire in wires)
    for connection, _ in wires:
        connection.connection_lost(None)
