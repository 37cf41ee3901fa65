"""A minimal client: it records when each event arrives and parses them after the stream's end.

It supports only the HTTP that a stream on loopback needs. Where client and engine share the cores,
the per-event work of a general client would be measured too.
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


class HttpSystem:
    """A server that is measured over HTTP. See `System`.

    Args:
        name: its name in the results.
        port: on 127.0.0.1.
        model: the served model name.
        sends_proposer: requests name their proposer, which only Specgate accepts.
    """

    def __init__(self, name: str, port: int, model: str, *, sends_proposer: bool) -> None:
        self.name = name
        self._port = port
        self._model = model
        self._sends_proposer = sends_proposer

    async def send_burst(self, requests: Sequence[Request]) -> list[Timeline]:
        """See `System.send_burst`. Raises `RuntimeError` with the server's error."""
        streams = await asyncio.gather(*map(self._stream, requests))
        timelines = [read_events(events) for events in streams]
        return [
            replace(timeline, tokens_per_step=1.0) if request.proposer == NONE else timeline
            for request, timeline in zip(requests, timelines, strict=True)
        ]

    async def _stream(self, request: Request) -> list[tuple[float, bytes]]:
        body = request.body(self._model)
        if not self._sends_proposer:
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
    """The `data:` lines of a response, each with its arrival time; chunk sizes are skipped."""
    status = await reader.readline()
    if b" 200 " not in status:
        answer = (await reader.read()).decode(errors="replace")
        raise RuntimeError(f"{status.decode().strip()}: {answer[-2000:]}")
    events = []
    while line := await reader.readline():
        if line.startswith(DATA):
            events.append((time.perf_counter(), line.rstrip()))
    return events
