"""A lean client: it notes when each event arrives and reads them when the stream has ended.

It speaks just the HTTP that a stream on loopback needs. On a machine where client and engine share
the cores, a general client's work per event would be measured too.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.timeline import DATA, Timeline, read_events
from benchmarks.workload import Request
from engine_adapter.types import NONE

PATH = "/v1/chat/completions"
TIMEOUT_S = 600.0


class HttpSide:
    """A server that is measured over HTTP. See `Side`.

    Args:
        name: what the results call it.
        port: where it listens on 127.0.0.1.
        model: the name that it serves.
        pins: it takes the choice of a proposer, as Specgate does.
    """

    def __init__(self, name: str, port: int, model: str, *, pins: bool) -> None:
        self.name = name
        self._port = port
        self._model = model
        self._pins = pins

    async def wave(self, requests: Sequence[Request]) -> list[Timeline]:
        """See `Side.wave`. Raises `RuntimeError` with what the server said."""
        streams = await asyncio.gather(*map(self._stream, requests))
        timelines = [read_events(events) for events in streams]
        return [
            replace(timeline, tokens_per_step=1.0) if request.proposer == NONE else timeline
            for request, timeline in zip(requests, timelines, strict=True)
        ]

    async def _stream(self, request: Request) -> list[tuple[float, bytes]]:
        body = request.body(self._model)
        if not self._pins:
            body.pop("spec_decode", None)
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(_post(json.dumps(body).encode()))
                return await _events(reader)
            finally:
                writer.close()


def _post(content: bytes) -> bytes:
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


async def _events(reader: asyncio.StreamReader) -> list[tuple[float, bytes]]:
    """The `data:` lines of a response, each with its arrival; chunk sizes are skipped."""
    status = await reader.readline()
    if b" 200 " not in status:
        answer = (await reader.read()).decode(errors="replace")
        raise RuntimeError(f"{status.decode().strip()}: {answer[-2000:]}")
    events = []
    while line := await reader.readline():
        if line.startswith(DATA):
            events.append((time.perf_counter(), line.rstrip()))
    return events
