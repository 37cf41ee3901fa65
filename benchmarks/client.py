"""A server that `specgate bench compare` or `gain` has started, measured over HTTP."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.http_stream import Endpoint
from benchmarks.timeline import Timeline, read_events
from benchmarks.workload import Request
from engine_adapter.seam.types import NONE

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
        self._endpoint = Endpoint(f"http://127.0.0.1:{port}")
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
        reply = await self._endpoint.post(PATH, json.dumps(body).encode(), TIMEOUT_S)
        if reply.problem is not None:
            raise RuntimeError(f"{self.name}: {reply.problem}: {reply.detail}")
        if reply.status != 200:
            answer = reply.body[-2000:].decode(errors="replace")
            raise RuntimeError(f"{self.name} answered {reply.status}: {answer}")
        return reply.events
