"""Clients of a server that fails: each request ends with a whole answer or an honest error."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.greedy import Plain, plain
from tests.e2e.served import Served, wait_until
from tests.e2e.traffic import chat, gather

CLIENTS, TOKENS = 12, 200
CHATS = "/v1/chat/completions"
DONE: dict[str, Any] = {"done": True}
"""The last event of a stream."""

ARRIVAL_S = 1.0
"""Seconds in which a request that has been sent reaches the server, however busy that is."""


@asynccontextmanager
async def connecting(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client that opens a connection for each request: none meets one that is being closed."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=url, trust_env=False, timeout=120, limits=limits
    ) as client:
        yield client


def body_of(client: int) -> dict[str, Any]:
    """The chat that a client repeats; every other one is streamed."""
    whole = {} if client % 2 else {"stream": False, "stream_options": None}
    return chat(client, max_tokens=TOKENS, **whole)


async def greedy_texts(served: Served) -> list[Plain]:
    """What each client's answer must be."""
    async with connecting(served.url) as client:
        return await gather(*(plain(client, body_of(i)) for i in range(CLIENTS)))


@dataclass
class Load:
    """The clients, and how their requests ended.

    Attributes:
        texts: of each client, the greedy text that its answers must have.
        code: of the error that requests may end with.
        says: a part of the message of a stream that ends with it.
        refusal_says: a part of the message of a refusal.
        closed_at: the monotonic time from which the port may be closed.
        whole, refused, cut_off: answers, refusals with 503, and streams that ended with the error.
        unreached: connections that the closed port refused.
    """

    texts: Sequence[Plain]
    code: str
    says: str
    refusal_says: str = ""
    closed_at: float = float("inf")
    whole: int = 0
    refused: int = 0
    cut_off: int = 0
    unreached: int = 0
    stopping: bool = False

    @asynccontextmanager
    async def running(self, served: Served) -> AsyncIterator[None]:
        """Sends while the block runs; fails if a request ends in another way."""
        async with connecting(served.url) as client, asyncio.TaskGroup() as group:
            for i in range(len(self.texts)):
                group.create_task(self._repeat(client, i))
            yield
            self.stopping = True

    async def until(self, condition: Any, seconds: float, what: str) -> None:
        """`wait_until` in a thread, so that the load continues."""
        await asyncio.to_thread(wait_until, condition, seconds, what)

    async def follow(
        self, client: httpx.AsyncClient, body: dict[str, Any], text: Plain, writes: asyncio.Event
    ) -> None:
        """One more stream beside the clients' own. `writes` is set when its first text comes."""
        lines = []
        async with client.stream("POST", CHATS, json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                lines.append(line)
                if not writes.is_set() and _text_of(_events(lines)):
                    writes.set()
        self._check_stream("\n".join(lines), text)

    async def _repeat(self, client: httpx.AsyncClient, i: int) -> None:
        while not self.stopping:
            began = time.monotonic()
            request = client.build_request("POST", CHATS, json=body_of(i))
            try:
                response = await client.send(request, stream=True)
            except httpx.TransportError:
                # Sent earlier, it had reached the server, which must answer.
                if began < self.closed_at - ARRIVAL_S:
                    raise
                self.unreached += 1
                return
            try:
                await response.aread()
            finally:
                await response.aclose()
            if response.status_code != 200:
                await self._check_refusal(response)
            elif body_of(i)["stream"]:
                self._check_stream(response.text, self.texts[i])
            else:
                self._check_answer(response.json(), self.texts[i])

    async def _check_refusal(self, response: httpx.Response) -> None:
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, self.code), response.text
        assert self.refusal_says in error["message"], response.text
        assert int(response.headers["retry-after"]) >= 1
        self.refused += 1
        await asyncio.sleep(0.2)

    def _check_answer(self, answer: dict[str, Any], expected: Plain) -> None:
        (choice,) = answer["choices"]
        assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", TOKENS)
        text = choice["message"]["content"]
        assert expected.allows(text), (expected.text, text)
        self.whole += 1

    def _check_stream(self, text: str, expected: Plain) -> None:
        *chunks, done = _events(text.splitlines())
        assert done == DONE, done
        reasons = [c["choices"][0]["finish_reason"] for c in chunks if c.get("choices")]
        text = _text_of(chunks)
        if "error" in chunks[-1]:
            error = chunks[-1]["error"]
            assert error["code"] == self.code
            assert self.says in error["message"]
            assert not any(reasons)
            assert expected.begins(text), (expected.text, text)
            self.cut_off += 1
        else:
            tokens = chunks[-1]["usage"]["completion_tokens"]
            assert (reasons[-1], tokens) == ("length", len(expected.gaps))
            assert expected.allows(text), (expected.text, text)
            self.whole += 1


def _events(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The events of a stream; its end is `DONE`."""
    data = (line.removeprefix("data: ") for line in lines if line.startswith("data: "))
    return [DONE if one == "[DONE]" else json.loads(one) for one in data]


def _text_of(chunks: Iterable[dict[str, Any]]) -> str:
    deltas = (chunk["choices"][0]["delta"] for chunk in chunks if chunk.get("choices"))
    return "".join(delta.get("content") or "" for delta in deltas)


@dataclass
class Faults:
    """What happened in each fault, for a table."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, fault: str, method: str, load: Load, seconds: float) -> None:
        """The end of one, which took so many seconds."""
        ends = (load.whole, load.cut_off, load.refused, load.unreached)
        self.rows.append((fault, method, *ends, round(seconds, 1)))

    def table(self) -> str:
        """All of them as Markdown, with sums."""
        head = (
            *("fault", "method", "whole answers", "streams that ended with the error"),
            *("refused with 503", "connections refused", "seconds"),
        )
        sums = [sum(row[column] for row in self.rows) for column in range(2, 6)]
        longest = max(row[-1] for row in self.rows)
        rows: list[Sequence[Any]] = [head, ["---"] * len(head), *self.rows]
        rows.append([f"{len(self.rows)} faults", "", *sums, f"at most {longest}"])
        return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
