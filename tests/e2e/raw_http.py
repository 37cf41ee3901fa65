"""HTTP by hand: clients that are slow, silent, or send what no library would send."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


def address(url: str) -> tuple[str, int]:
    """Host and port of a server."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def head(path: str, body: bytes, *more: str) -> bytes:
    """The head of a POST."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def request(path: str, body: Any, *more: str) -> bytes:
    """A whole POST of JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, content, *more) + content


def status(answer: bytes) -> int:
    """The status of an answer; 0 if there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def send_until_closed(url: str, parts: Any, seconds: float = 60) -> bytes:
    """Sends parts until the server closes the connection. Returns its answer."""
    with socket.create_connection(address(url), timeout=seconds) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = b""
        try:
            while data := connection.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
        return answer


async def exchange(url: str, content: bytes) -> bytes:
    """Sends a request and reads to the end of the connection, which the request should ask for."""
    reader, writer = await asyncio.open_connection(*address(url))
    try:
        writer.write(content)
        return await reader.read()
    finally:
        writer.close()


def stream_text(answer: bytes) -> str:
    """The text of a completion's stream that ended well."""
    assert status(answer) == 200, answer[:500]
    assert b"data: [DONE]" in answer, answer[-500:]
    texts = []
    for line in answer.split(b"\n"):
        if line.startswith(b"data: {"):
            event = json.loads(line.removeprefix(b"data: "))
            texts += [choice["text"] for choice in event["choices"]]
    return "".join(texts)


@dataclass
class Probe:
    """Asks `/health` on one connection every few milliseconds.

    Attributes:
        cpu_s: the CPU time so far of what may hold up the answers.
        worst_s: the longest wait for an answer.
        worst_cpu_s: the most CPU time from one answer to the next.
        every_s: seconds between two questions.
    """

    url: str
    cpu_s: Callable[[], float]
    every_s: float = 0.01
    worst_s: float = 0.0
    worst_cpu_s: float = 0.0
    asked: int = 0
    _running: bool = True

    def run(self) -> None:
        """Asks until `stop`; for a thread."""
        with socket.create_connection(address(self.url), timeout=120) as connection:
            cpu_s = self.cpu_s()
            while self._running:
                begun = time.perf_counter()
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                answer = b""
                while not answer.endswith(b"}"):
                    answer += connection.recv(4096)
                self.worst_s = max(self.worst_s, time.perf_counter() - begun)
                before_s, cpu_s = cpu_s, self.cpu_s()
                self.worst_cpu_s = max(self.worst_cpu_s, cpu_s - before_s)
                self.asked += 1
                assert status(answer) == 200, answer
                time.sleep(self.every_s)

    def stop(self) -> None:
        """Ends `run`."""
        self._running = False
