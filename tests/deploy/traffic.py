"""Clients that send completions without a pause and note each that did not end well."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

MODEL = "specgate-demo"


@dataclass
class Report:
    """What the clients saw.

    Attributes:
        streams: complete answers that came as streams.
        wholes: complete answers that came at once.
        lost: what went wrong with each other request.
        seconds: of each complete answer.
    """

    streams: int = 0
    wholes: int = 0
    lost: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def answered(self) -> int:
        """The number of complete answers."""
        return self.streams + self.wholes


class Traffic:
    """Clients against one address; half of the requests are streams, of up to 1.2 `max_tokens`."""

    def __init__(self, url: str, clients: int, max_tokens: int) -> None:
        self._url = url
        self._clients = clients
        self._max_tokens = max_tokens
        self._stopping = False
        self.report = Report()

    async def run(self) -> Report:
        """Sends until `stop`, and waits for the last answers."""
        limits = httpx.Limits(max_connections=self._clients)
        async with httpx.AsyncClient(
            base_url=self._url, limits=limits, timeout=120, trust_env=False
        ) as client:
            await asyncio.gather(*(self._send(client, number) for number in range(self._clients)))
        return self.report

    def stop(self) -> None:
        """No further request begins."""
        self._stopping = True

    async def _send(self, client: httpx.AsyncClient, number: int) -> None:
        turn = number
        while not self._stopping:
            turn += 1
            body = self._body(number, turn)
            begin = time.monotonic()
            try:
                problem = await (_stream if body["stream"] else _whole)(client, body)
            except httpx.HTTPError as error:
                problem = repr(error)
            if problem is not None:
                kind = "stream" if body["stream"] else "whole answer"
                self.report.lost.append(f"client {number}, {kind}: {problem}")
            else:
                self.report.seconds.append(time.monotonic() - begin)
                if body["stream"]:
                    self.report.streams += 1
                else:
                    self.report.wholes += 1

    def _body(self, number: int, turn: int) -> dict[str, Any]:
        return {
            "model": MODEL,
            "prompt": f"def client_{number}_{turn}(values):",
            # Different lengths, so that the clients do not run in step.
            "max_tokens": self._max_tokens // 6 + (number * 37 + turn * 61) % self._max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": turn % 2 == 0,
        }


async def _whole(client: httpx.AsyncClient, body: dict[str, Any]) -> str | None:
    """What is wrong with the answer, if something is."""
    response = await client.post("/v1/completions", json=body)
    if response.status_code != 200:
        return f"status {response.status_code}: {response.text[:200]}"
    answer = response.json()
    tokens = answer["usage"]["completion_tokens"]
    return None if tokens == body["max_tokens"] else f"{tokens} tokens"


async def _stream(client: httpx.AsyncClient, body: dict[str, Any]) -> str | None:
    """What is wrong with the stream, if something is."""
    body = {**body, "stream_options": {"include_usage": True}}
    events: list[str] = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            return f"status {response.status_code}: {(await response.aread())[:200]!r}"
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                events.append(line.removeprefix("data: "))
    if not events or events[-1] != "[DONE]":
        return f"ended with {events[-1:]}"
    tokens = json.loads(events[-2])["usage"]["completion_tokens"]
    return None if tokens == body["max_tokens"] else f"{tokens} tokens"
