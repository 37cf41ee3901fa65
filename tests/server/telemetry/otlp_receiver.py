"""A collector of traces: takes OTLP over HTTP on a free port of loopback, and decodes it."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.server.gateway import eventually


@dataclass(frozen=True)
class Span:
    """A span as the collector got it.

    Attributes:
        trace_id, span_id, parent_id: hexadecimal; a root's `parent_id` is empty.
        kind: 2 is a server's.
        status: 0 is unset, 2 an error.
        events: name -> Unix time in nanoseconds.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    trace_state: str
    kind: int
    status: int
    begin_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: dict[str, int]
    resource: dict[str, Any]


@dataclass
class OtlpReceiver:
    """What the collector got.

    Attributes:
        bodies: the decompressed bodies of all exports.
        status: what it answers.
        hangs: it does not answer.
    """

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    status: int = 200
    hangs: bool = False

    async def one(self, seconds: float = 60.0) -> Span:
        """The only span, when it has come."""
        (span,) = await self.wait(1, seconds)
        return span

    async def wait(self, count: int, seconds: float = 60.0) -> list[Span]:
        """The first `count` spans, when they have come; there must be no more."""
        await eventually(lambda: len(self.spans) >= count, seconds)
        assert len(self.spans) == count
        return self.spans

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        try:
            while line := await reader.readline():
                headers = {}
                while (header := await reader.readline()).strip():
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers["content-length"]))
                if headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                self.paths.append(line.split()[1].decode())
                if self.hangs:
                    await asyncio.Event().wait()
                if self.status == 200:
                    self.bodies.append(body)
                    self.spans += decoded(body)
                head = f"HTTP/1.1 {self.status} Made\r\ncontent-length: 0\r\n\r\n"
                writer.write(head.encode())
                await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[OtlpReceiver]:
    """A collector that runs until the block ends."""
    receiver = OtlpReceiver()
    tasks: set[asyncio.Task[Any]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(receiver.handle(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/traces"
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def decoded(body: bytes) -> list[Span]:
    """The spans of an export."""
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Span(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            trace_state=span.trace_state,
            kind=span.kind,
            status=span.status.code,
            begin_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            attributes=_values(span.attributes),
            events={event.name: event.time_unix_nano for event in span.events},
            resource=_values(resource.resource.attributes),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
