"""Clients that send greedy requests all the time and compare every text."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import httpx

MAX_TOKENS = 24


async def complete(client: httpx.AsyncClient, prompt: str, *, stream: bool) -> str:
    """The whole text of a greedy completion. Raises `AssertionError` unless it came whole."""
    body = {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": stream}
    if not stream:
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])
    text, ended = "", False
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                ended = True
            elif line.startswith("data: "):
                event = json.loads(data)
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
    assert ended, "the stream was cut"
    return text


class Load:
    """What the clients have seen.

    Attributes:
        begun: requests that were sent.
        done: those whose text was right.
        faults: the others, each with what was wrong.
    """

    def __init__(self) -> None:
        self.begun = self.done = 0
        self.faults: list[str] = []


async def texts_of(client: httpx.AsyncClient, prompts: Sequence[str]) -> dict[str, str]:
    """Prompt -> its text now."""
    return {prompt: await complete(client, prompt, stream=False) for prompt in prompts}


@asynccontextmanager
async def under_load(
    url: str, expected: Mapping[str, str], clients: int = 4
) -> AsyncIterator[Load]:
    """Runs clients while the block runs, and lets their last requests end."""
    load, stopping = Load(), asyncio.Event()

    async def run(number: int) -> None:
        prompts = list(expected)
        async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client:
            turn = number
            while not stopping.is_set():
                prompt = prompts[turn % len(prompts)]
                load.begun += 1
                try:
                    text = await complete(client, prompt, stream=bool(turn % 2))
                    assert text == expected[prompt], (text, expected[prompt])
                    load.done += 1
                except (httpx.HTTPError, AssertionError) as error:
                    load.faults.append(f"{type(error).__name__}: {error}"[:500])
                turn += 1

    running = [asyncio.create_task(run(number)) for number in range(clients)]
    try:
        yield load
    finally:
        stopping.set()
        await asyncio.gather(*running)
