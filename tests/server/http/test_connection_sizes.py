"""The sizes of a request's head, on a made transport."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.server.http.wire import GET, Bench, answer, settle, slow


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /" + b"x" * 200 + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
        (b"GET / HTTP/1.1\r\na: " + b"x" * 1000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 11 + b"\r\n", 431, "headers_too_large"),
        # Not complete, so that the parser has passed on nothing yet.
        (b"GET /" + b"x" * 2000, 414, "url_too_long"),
        (b"GET / HTTP/1.1\r\na: b\r\nc: " + b"x" * 2000, 431, "headers_too_large"),
        (b"\x00\x01\x02\r\n\r\n", 400, "invalid_http"),
    ],
    ids=["url", "header", "number", "url-cut", "header-cut", "not-http"],
)
async def test_what_is_too_large_is_refused_and_closed(head: bytes, status: int, code: str) -> None:
    bench = Bench(answer, max_url_bytes=100, max_header_bytes=900, max_headers=10)
    connection, wire = bench.connect()
    with capture_logs() as lines:
        for at in range(0, len(head), 64):
            if not wire.closing:
                connection.data_received(head[at : at + 64])
                await settle()
    assert wire.closing
    found, error = wire.error
    assert (found, error["code"]) == (status, code)
    reason = "bad_request" if status == 400 else "too_large"
    assert bench.closed(reason) == 1
    assert [(line["event"], line["reason"], line["peer"]) for line in lines] == [
        ("connection_closed", reason, "192.0.2.1")
    ]


async def test_what_is_not_http_is_few_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(answer, limit=100)
    upgrade = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    with capture_logs() as lines:
        for sent in [b"\x00\x01\x02\r\n\r\n"] * 20 + [upgrade] * 20:
            connection, wire = bench.connect()
            connection.data_received(sent)
            await settle()
    assert b"200 OK" in wire.sent
    assert bench.closed("bad_request") == 20
    assert len(lines) == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    ("rest", "reason"),
    [(b"0\r\nt: " + b"x" * 2000, "too_large"), (b"not a chunk\r\n", "bad_request")],
    ids=["trailer", "chunk"],
)
async def test_a_request_that_is_answered_before_its_end_gets_no_second_answer(
    rest: bytes, reason: str
) -> None:
    bench = Bench(answer, max_header_bytes=900)
    connection, wire = bench.connect()
    connection.data_received(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
    await settle()
    answered = wire.sent
    assert answered.startswith(b"HTTP/1.1 200 OK")
    connection.data_received(rest)
    assert wire.closing
    assert wire.sent == answered
    assert bench.closed(reason) == 1


async def test_a_request_whose_body_is_invalid_before_its_answer_gets_none() -> None:
    bench = Bench(slow)
    connection, wire = bench.connect()
    connection.data_received(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
    await settle()
    connection.data_received(b"not a chunk\r\n")
    assert wire.closing
    assert wire.sent == b""
    connection.connection_lost(None)


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "after-an-answer"])
@pytest.mark.parametrize("url", [b"http:///x", b"http://a:99999/x", b"http://", b"http://[::1/"])
async def test_a_url_that_cannot_be_parsed_is_answered_with_400(url: bytes, before: bytes) -> None:
    bench = Bench(answer)
    connection, wire = bench.connect()
    connection.data_received(before)
    await settle()
    answered = len(wire.sent)
    assert bool(answered) == bool(before)
    connection.data_received(b"GET " + url + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert wire.closing
    wire.sent = wire.sent[answered:]
    status, error = wire.error
    assert (status, error["code"]) == (400, "invalid_http")
    assert bench.closed("bad_request") == 1


async def test_headers_up_to_the_limits_are_accepted() -> None:
    bench = Bench(answer, max_url_bytes=100, max_header_bytes=900, max_headers=10)
    connection, wire = bench.connect()
    connection.data_received(b"GET /" + b"x" * 99 + b" HTTP/1.1\r\n" + b"a: b\r\n" * 10 + b"\r\n")
    await settle()
    connection.data_received(b"GET / HTTP/1.1\r\na: " + b"x" * 860)
    connection.data_received(b"x" * 39 + b"\r\n\r\n")
    await settle()
    assert wire.sent.count(b"200 OK") == 2


async def test_many_small_chunks_of_a_body_do_not_count_as_headers() -> None:
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
