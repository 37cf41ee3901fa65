"""A program that floods a server with one API key, and repeats what is refused.

    python -m tests.e2e.flood PORT KEY CONNECTIONS THINK_S BODY

Each connection has one request at a time, and sends the next one `THINK_S` seconds after an answer,
whatever `Retry-After` says. It prints a line when all are connected. When its input ends it prints
how many answers had which status, as JSON. It reads no more of an answer than it needs, so that the
flood costs its machine as little as it can.
"""

import asyncio
import json
import re
import sys
from collections import Counter

_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}).*?\r\ncontent-length: (\d+)\r\n.*?\r\n\r\n", re.S | re.I)


class Flooder(asyncio.Protocol):
    """One connection: sends the request, counts the answer, sends it again."""

    def __init__(self, request: bytes, think_s: float, statuses: "Counter[str]") -> None:
        self._request = request
        self._think_s = think_s
        self._statuses = statuses
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the first request."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Counts an answer that is complete, and sends the next request after the pause."""
        self._received += data
        head = _HEAD.match(self._received)
        if head is None or len(self._received) < head.end() + int(head[2]):
            return
        self._received = b""
        self._statuses[head[1].decode()] += 1
        if self._think_s:
            asyncio.get_running_loop().call_later(self._think_s, self._send)
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts a connection that the server has closed."""
        self._statuses["closed"] += 1

    def _send(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._request)


async def flood(port: int, request: bytes, connections: int, think_s: float) -> "Counter[str]":
    """Floods the server until the input ends. Returns the answers by status."""
    loop = asyncio.get_running_loop()
    statuses: Counter[str] = Counter()
    for _ in range(connections):
        await loop.create_connection(lambda: Flooder(request, think_s, statuses), "127.0.0.1", port)
    print("connected", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    return statuses.copy()


def main() -> None:
    """Runs the program."""
    port, key, connections, think_s, body = sys.argv[1:]
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    request = (head + body).encode("ascii")
    print(json.dumps(asyncio.run(flood(int(port), request, int(connections), float(think_s)))))


if __name__ == "__main__":
    main()
