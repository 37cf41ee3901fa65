"""The client against a server that sends prepared bytes."""

import asyncio
from typing import Any

import pytest

from benchmarks import http_stream
from benchmarks.http_stream import Endpoint
from tests.benchmarks.load.scripted import STREAM_HEAD, part, plain, served

LIMIT_S = 60.0


async def test_a_line_that_comes_in_several_chunks_is_one_event() -> None:
    async def answer(head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + part(b'data: {"a"') + part(b": 1}\r\n\n: comment\n\ndata:"))
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.write(part(b"[DONE]\n\n") + part(b""))

    async with served(answer) as url:
        reply = await Endpoint(url).post("/v1/completions", b"{}", LIMIT_S)
    assert (reply.status, reply.problem) == (200, None)
    assert [line for _, line in reply.events] == [b'{"a": 1}', b"[DONE]"]
    assert reply.events[1][0] - reply.events[0][0] > 0.03, "the time is that of the line's end"


async def test_path_host_and_key_are_sent() -> None:
    seen: list[str] = []

    async def answer(head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        seen.append(head)
        writer.write(plain("200 OK", {"ok": True}))

    async with served(answer) as url:
        reply = await Endpoint(f"{url}/proxy/", "secret").get("/v1/models", LIMIT_S)
    assert reply.body == b'{"ok": true}'
    assert seen[0].startswith("GET /proxy/v1/models HTTP/1.1\r\n")
    assert "Authorization: Bearer secret\r\n" in seen[0]
    assert f"Host: {url.removeprefix('http://')}\r\n" in seen[0]


async def test_a_refusal_keeps_its_body() -> None:
    async def answer(head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(plain("429 Too Many Requests", {"error": {"message": "full"}}))

    async with served(answer) as url:
        reply = await Endpoint(url).post("/", b"{}", LIMIT_S)
    assert (reply.status, reply.problem, reply.body) == (
        429,
        None,
        b'{"error": {"message": "full"}}',
    )


async def test_a_response_that_breaks_off_is_a_problem() -> None:
    async def answer(head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + part(b"data: 1\n"))

    async with served(answer) as url:
        reply = await Endpoint(url).post("/", b"{}", LIMIT_S)
    assert reply.problem == "connection"
    assert len(reply.events) == 1


async def test_a_response_without_length_ends_with_the_connection() -> None:
    async def answer(head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n")

    async with served(answer) as url:
        reply = await Endpoint(url).post("/", b"{}", LIMIT_S)
    assert (reply.problem, [line for _, line in reply.events]) == (None, [b"1"])


async def test_a_server_that_hangs_is_left_after_the_time_limit() -> None:
    left = asyncio.Event()

    async def answer(head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + part(b"data: 1\n"))
        await writer.drain()
        while not writer.is_closing():
            await asyncio.sleep(0.01)
            writer.write(part(b": still here\n"))
        left.set()

    async with served(answer) as url:
        reply = await Endpoint(url).post("/", b"{}", 1.0)
        await asyncio.wait_for(left.wait(), LIMIT_S)
    assert reply.problem == "timeout"
    assert len(reply.events) == 1, "what came before is kept"


@pytest.mark.parametrize("content", [b"no HTTP at all\r\n\r\n", b""])
async def test_what_is_not_http_is_a_problem(content: bytes) -> None:
    async def answer(head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(content)

    async with served(answer) as url:
        reply = await Endpoint(url).post("/", b"{}", LIMIT_S)
    assert (reply.status, reply.problem) == (None, "connection")


async def test_a_port_without_a_server_is_a_failed_connection() -> None:
    reply = await Endpoint("http://127.0.0.1:9").get("/", LIMIT_S)
    assert (reply.status, reply.problem) == (None, "connection")
    assert reply.detail


async def test_a_response_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_stream, "MAX_BYTES", 100)

    async def answer(head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(plain("200 OK", "x" * 1000))

    async with served(answer) as url:
        reply = await Endpoint(url).get("/", LIMIT_S)
    assert (reply.problem, reply.detail) == ("connection", "the response is larger than 100 bytes")


@pytest.mark.parametrize(
    ("url", "key", "complaint"),
    [
        ("localhost:8000", None, "must begin with http"),
        ("ftp://host", None, "must begin with http"),
        ("http://", None, "name a host"),
        ("http://user:password@host", None, "without user"),
        ("http://host/?a=1", None, "without user, query"),
        ("http://host:99999", None, "Port out of range"),
        ("http://host", "a\r\nHost: b", "printable ASCII"),
    ],
)
def test_unusable_addresses_and_keys_are_refused(url: str, key: str | None, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refused:
        Endpoint(url, key)
    assert "password" not in str(refused.value)
