"""A server that answers with prepared bytes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Answer = Callable[[str, dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
"""Gets the request's head and body, and writes the response."""

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def part(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(chunk: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def plain(status: str, body: Any, more: str = "") -> bytes:
    """A whole response."""
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def chunks(tokens: int, *, usage: bool = True) -> bytes:
    """A whole stream of a chat with one token in each event, and the end of the response."""
    events = [event({"choices": [{"delta": {"content": "x"}}]}) for _ in range(tokens)]
    events.append(event({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
    if usage:
        events.append(event({"choices": [], "usage": {"completion_tokens": tokens}}))
    return part(b"".join(events)) + part(b"data: [DONE]\n\n") + part(b"")


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[str]:
    """The address of a server on loopback; its connections are closed at the end."""
    writers: set[asyncio.StreamWriter] = set()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (
                    int(line[15:])
                    for line in head.split("\r\n")
                    if line.startswith("Content-Length:")
                ),
                0,
            )
            body = json.loads(await reader.readexactly(length)) if length else {}
            await answer(head, body, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            writers.discard(writer)

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in list(writers):
            writer.transport.abort()
        await asyncio.sleep(0)


class Server:
    """Answers after `delay_s`; counts what it has at the same time, and keeps the bodies."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.bodies: list[dict[str, Any]] = []
        self.in_flight = 0
        self.most = 0

    async def __call__(self, head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if head.startswith("GET"):
            writer.write(plain("200 OK", {"data": [{"id": "m"}]}))
            return
        self.bodies.append(body)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(self.delay_s)
        self.in_flight -= 1
        await self.answer(body, writer)

    async def answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Writes the answer."""
        writer.write(STREAM_HEAD + chunks(3))

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The bodies of completions that are neither warm-up nor priming."""
        return [b for b in self.bodies if "prompt" in b and b["max_tokens"] > 1]
