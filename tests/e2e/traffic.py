"""Many concurrent clients: streams that are read to the end, and streams that are closed early."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from demo.prompts import load_prompts

MESSAGES = [prompt.messages for prompt in load_prompts()]
"""The demo's 80 measured chats: quoting ones, then free ones."""


@dataclass(frozen=True)
class Streamed:
    """A stream that was read to its end."""

    text: str
    tokens: int
    statistics: dict[str, Any]

    @property
    def drafted_by(self) -> set[str]:
        """The proposers whose drafts were verified for it."""
        return set(self.statistics["by_proposer"])


@asynccontextmanager
async def clients(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client for many connections."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, trust_env=False, timeout=120, limits=limits
    ) as client:
        yield client


def chat(index: int, **fields: Any) -> dict[str, Any]:
    """The body of a streamed chat with the prompt of that number."""
    return {
        "messages": MESSAGES[index % len(MESSAGES)],
        "max_tokens": 48,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


async def stream(client: httpx.AsyncClient, body: dict[str, Any]) -> Streamed:
    """Reads a stream of one choice; fails if it has an error or does not end correctly."""
    texts, last, done = [], None, False
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if not line or line.startswith(":"):
                continue
            done = data == "[DONE]"
            if not done:
                last = json.loads(data)
                assert "error" not in last, last
                texts += [choice["delta"].get("content", "") for choice in last["choices"]]
    assert done
    assert last is not None
    return Streamed(
        "".join(texts),
        last["usage"]["completion_tokens"],
        last["metrics"]["speculative_decoding"],
    )


async def leave(client: httpx.AsyncClient, body: dict[str, Any], events: int = 3) -> None:
    """Reads `events` lines of a stream and disconnects."""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        for _ in range(events):
            await anext(lines)


async def gather(*work: Any) -> list[Any]:
    """`asyncio.gather` that fails at the first failure and leaves nothing running."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]
