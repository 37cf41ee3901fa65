"""Connections above the limit of their number, on a made transport."""

from structlog.testing import capture_logs

from server.http.connection import SPARE_TIMEOUT_S
from server.http.descriptors import SPARE
from tests.server.http.wire import GET, Bench, answer, settle, slow


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


async def test_far_above_the_limit_the_oldest_silent_connection_makes_room() -> None:
    bench = Bench(answer, limit=1)
    wires = [bench.connect()[1] for _ in range(1 + SPARE + 2)]
    aborted = [number for number, wire in enumerate(wires) if wire.aborted]
    assert aborted == [1, 2]
    assert bench.closed("refused") == 2
    assert bench.registry.get_sample_value("specgate_connections") == 1 + SPARE
    assert bench.registry.get_sample_value("specgate_connections_limit") == 1
    probe, probe_wire = bench.connect()
    probe.data_received(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    await settle()
    assert b"200 OK" in probe_wire.sent


async def test_a_connection_whose_probe_is_answered_does_not_make_room() -> None:
    bench = Bench(slow, limit=1)
    bench.connect()
    for _ in range(SPARE):
        probe, _ = bench.connect()
        probe.data_received(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    await settle()
    _, wire = bench.connect()
    assert wire.aborted
    assert bench.closed("refused") == 1
    assert bench.registry.get_sample_value("specgate_connections") == 1 + SPARE


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
    _, oldest = bench.connect()
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
    assert other.error[0] == 503
    assert (oldest.aborted, wire.aborted) == (True, False)
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
