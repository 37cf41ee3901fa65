"""A lean HTTP client: it records when each line of a stream arrives and parses nothing meanwhile.

Where client and server share the cores, the work of a general client for each event would be
measured too. The protocol itself is parsed by httptools, in C. Each request has a connection of its
own. Redirects are not followed, and proxy variables are not read.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

DATA = b"data:"
READ_BYTES = 1 << 16
MAX_BYTES = 64 << 20
"""The most bytes of one response."""


@dataclass(slots=True)
class Reply:
    """A response, as far as it has come.

    Attributes:
        status: HTTP status, or `None` if there was no response.
        events: seconds on `time.perf_counter` and content of each `data:` line of a stream.
        body: of a response that is not a stream of events.
        retry_after_s: how long the server asks a client to wait; 0 without such a header.
        problem: why the response is incomplete: `timeout` or `connection`; `None` if it is whole.
        detail: the problem in words.
    """

    status: int | None = None
    events: list[tuple[float, bytes]] = field(default_factory=list)
    body: bytes = b""
    retry_after_s: int = 0
    problem: str | None = None
    detail: str = ""


class Endpoint:
    """An HTTP server, with an optional API key.

    Args:
        url: `http://` or `https://`, a host, and optionally a port and a path, to which the paths
            of requests are appended.
        key: sent as bearer token.

    Raises:
        ValueError: the address cannot be used.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} must begin with http:// or https:// and name a host")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(f"{parts.hostname}: give the address without user, query and fragment")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._head = f"Host: {parts.netloc}\r\nConnection: close\r\n"
        if key is not None:
            if not key.isascii() or not key.isprintable():
                raise ValueError("the API key must be printable ASCII")
            self._head += f"Authorization: Bearer {key}\r\n"

    async def get(self, path: str, time_limit_s: float) -> Reply:
        """The response to GET. Network errors are in the reply, not raised."""
        return await self._exchange(
            f"GET {self._prefix}{path} HTTP/1.1\r\n{self._head}\r\n", time_limit_s
        )

    async def post(self, path: str, content: bytes, time_limit_s: float) -> Reply:
        """The response to a JSON body. Network errors are in the reply, not raised."""
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\n{self._head}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return await self._exchange(head, time_limit_s, content)

    async def _exchange(self, head: str, time_limit_s: float, content: bytes = b"") -> Reply:
        response = _Response()
        reply = response.reply
        try:
            async with asyncio.timeout(time_limit_s):
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, ssl=self._tls
                )
                try:
                    writer.write(head.encode() + content)
                    while not response.complete and (data := await reader.read(READ_BYTES)):
                        response.feed(data)
                finally:
                    writer.transport.abort()  # a server aborts the generation of a lost client
        except TimeoutError:
            reply.problem, reply.detail = "timeout", f"no end after {time_limit_s:g} s"
        except httptools.HttpParserError as error:
            reply.problem, reply.detail = "connection", f"the response is not HTTP ({error})"
        except (OSError, ValueError) as error:
            reply.problem, reply.detail = "connection", str(error) or type(error).__name__
        else:
            if not response.complete and not response.ends_with_connection:
                reply.problem, reply.detail = "connection", "closed before the response ended"
        return reply


class _Response:
    """Collects a response; httptools calls the `on_` methods."""

    def __init__(self) -> None:
        self.reply = Reply()
        self.complete = False
        self.ends_with_connection = False
        self._parser = httptools.HttpResponseParser(self)
        self._is_stream = False
        self._has_length = False
        self._bytes = 0
        self._now = 0.0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Takes what has just arrived. Raises `ValueError` if the response is too large."""
        self._now = time.perf_counter()
        self._bytes += len(data)
        if self._bytes > MAX_BYTES:
            raise ValueError(f"the response is larger than {MAX_BYTES} bytes")
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Learns where the response ends, what it is, and when to come again."""
        name = name.lower()
        if name == b"content-type":
            self._is_stream = value.lower().startswith(b"text/event-stream")
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        elif name == b"retry-after" and value.isdigit():
            self.reply.retry_after_s = int(value)

    def on_headers_complete(self) -> None:
        """Takes the status."""
        self.reply.status = self._parser.get_status_code()
        self.ends_with_connection = not self._has_length

    def on_body(self, data: bytes) -> None:
        """Takes a part of the body; a line may come in several parts."""
        if not self._is_stream:
            self.reply.body += data
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.reply.events += [
            (self._now, line[len(DATA) :].strip()) for line in lines if line.startswith(DATA)
        ]

    def on_message_complete(self) -> None:
        """Notes that nothing is missing."""
        self.complete = True
