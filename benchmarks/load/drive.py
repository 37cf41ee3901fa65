"""Sends the requests of one pass, in a closed or an open loop."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.http_stream import Reply
from benchmarks.load.arrivals import Arrivals, OpenLoop
from benchmarks.load.prompts import Prompt
from benchmarks.load.samples import Sample, measured
from benchmarks.load.sides import Target

TICK_S = 0.05
"""How often a ramp may change the number of requests in flight while none ends."""

MAX_BACK_OFF_S = 30.0
"""The longest wait of a closed loop for a server that refuses."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request, the same for all sides.

    Attributes:
        index: position in the pass.
        max_tokens: length limit of the answer.
        seed: of the sampling.
    """

    index: int
    prompt: Prompt
    temperature: float
    max_tokens: int
    seed: int

    def body(self, target: Target) -> bytes:
        """The body for one side."""
        fields = {
            "model": target.model,
            **self.prompt.content,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": True,
            **target.extras,
            **target.side.fields_for(self.prompt.label),
        }
        return json.dumps(fields).encode()


@dataclass(frozen=True, slots=True)
class _Sent:
    request: PlannedRequest
    sent: float
    planned_s: float
    reply: Reply


class Driver:
    """One pass over one side.

    Args:
        target: the side.
        phases: requests in the order of sending. With several lists, `seconds` is divided equally
            among them, and a pass goes over to the next list when its time has come.
        seconds: after this time no request is sent; those in flight end. `None` sends all.
        time_limit_s: of each request.
        on_end: called when a request has ended.
    """

    def __init__(
        self,
        target: Target,
        phases: Sequence[Sequence[PlannedRequest]],
        seconds: float | None,
        time_limit_s: float,
        on_end: Callable[[Reply], None] = lambda reply: None,
    ) -> None:
        self._target = target
        self._phases = [iter(phase) for phase in phases]
        self._most = max(map(len, phases))
        self._seconds = float("inf") if seconds is None else seconds
        self._time_limit_s = time_limit_s
        self._on_end = on_end
        self._sent: list[_Sent] = []
        self._in_flight = 0
        self._ended = asyncio.Event()
        self._start = 0.0
        self._end = 0.0

    @property
    def seconds(self) -> float:
        """From the start to the end of the last request that has ended."""
        return max(self._end - self._start, 0.0)

    def samples(self) -> list[Sample]:
        """What was measured so far. Answers are parsed here, not while others are measured."""
        return [
            measured(
                request.reply,
                request.sent,
                index=request.request.index,
                prompt=request.request.prompt.id,
                label=request.request.prompt.label,
                temperature=request.request.temperature,
                sent_s=round(request.sent - self._start, 6),
                late_ms=round(max(1e3 * (request.sent - self._start - request.planned_s), 0.0), 3),
            )
            for request in self._sent
        ]

    async def run(self, arrivals: Arrivals, seed: int) -> None:
        """Sends the requests; `seed` determines the arrivals of an open loop."""
        self._start = self._end = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            if isinstance(arrivals, OpenLoop):
                await self._send_at(arrivals.times_s(self._most, seed), group)
            else:
                await self._send_while(arrivals.limit, group)

    async def _send_at(self, times_s: Sequence[float], group: asyncio.TaskGroup) -> None:
        for time_s in times_s:
            request = self._next(time_s)
            if request is None:
                break
            await asyncio.sleep(self._start + time_s - time.perf_counter())
            group.create_task(self._send(request, time_s))

    async def _send_while(self, limit: Callable[[float], int], group: asyncio.TaskGroup) -> None:
        while True:
            elapsed = time.perf_counter() - self._start
            if elapsed >= self._seconds:
                break
            if self._in_flight < limit(elapsed):
                request = self._next(elapsed)
                if request is None:
                    break
                self._in_flight += 1
                group.create_task(self._send(request, None))
                continue
            self._ended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._ended.wait()

    def _next(self, elapsed_s: float) -> PlannedRequest | None:
        """The next request at this time; `None` at the end."""
        if elapsed_s >= self._seconds:
            return None
        phase = int(elapsed_s / self._seconds * len(self._phases))
        return next(self._phases[phase], None)

    async def _send(self, request: PlannedRequest, planned_s: float | None) -> None:
        body, sent_s = request.body(self._target), time.perf_counter()
        reply = await self._target.endpoint.post(request.prompt.path, body, self._time_limit_s)
        self._end = time.perf_counter()
        due_s = sent_s - self._start if planned_s is None else planned_s
        self._sent.append(_Sent(request, sent_s, due_s, reply))
        self._on_end(reply)
        if planned_s is None and reply.retry_after_s:
            await self._back_off(reply.retry_after_s)
        self._in_flight -= 1
        self._ended.set()

    async def _back_off(self, retry_after_s: int) -> None:
        """Waits as the server asks, but not longer than the pass: its place stays empty."""
        left_s = self._seconds - (time.perf_counter() - self._start)
        await asyncio.sleep(max(min(retry_after_s, MAX_BACK_OFF_S, left_s), 0.0))
