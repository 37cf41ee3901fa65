"""The clients of a soak: those that read, leave, do not read, err, switch, and rotate keys."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.raw_http import address, exchange, request, status, stream_text
from tests.e2e.rotation import KeyFile, Keys
from tests.e2e.served import Served

READERS, LEAVERS, UNREAD, BAD, KEYLESS = 54, 12, 6, 6, 2
"""Clients of each kind: 80 % of the connections."""

METHODS = ("none", "ngram", "suffix", "draft")
MODES = ("immediate", "new_requests")
PROMPTS = [f"def f{i}(x):" for i in range(20)]
COMPLETIONS, SWITCH = "/v1/completions", "/v1/switch_spec_method"

NO_KEYS = Keys(0)
"""They are in no key file. The next ones may become valid while a request is on its way."""

LONG: dict[str, Any] = {"max_tokens": 1200, "spec_decode": {"proposer": "none"}}
"""A request of 6 seconds: each token takes a step of 5 ms."""

BAD_BODIES: list[tuple[str, bytes]] = [
    (COMPLETIONS, b'{"prompt": '),
    (COMPLETIONS, b'{"prompt": 1}'),
    (COMPLETIONS, b'{"prompt": "a", "n": 1000}'),
    (COMPLETIONS, b"[" * 100_000),
    ("/v1/chat/completions", b'{"messages": []}'),
    ("/v1/chat/completions", json.dumps({"messages": [{"role": "x"}] * 3000}).encode()),
    (COMPLETIONS, json.dumps({"prompt": [5] * 200_000}).encode()),
    (COMPLETIONS, json.dumps({f"f{i}": 1 for i in range(1000)}).encode()),
    ("/detokenize", b'{"tokens": [999999999]}'),
    ("/none-such", b"{}"),
]


def post(path: str, body: Any, key: str) -> bytes:
    """A POST whose connection closes after the answer."""
    key_header = [f"authorization: Bearer {key}"] if key else []
    return request(path, body, "connection: close", *key_header)


def completion(prompt: str, key: str, *, stream: bool, **fields: Any) -> bytes:
    """A greedy completion of 60 tokens, if `fields` do not say otherwise."""
    body = {"prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    return post(COMPLETIONS, {**body, "stream": stream, **fields}, key)


@dataclass
class Soak:
    """The clients, and what they have seen.

    Attributes:
        texts: prompt -> its greedy text.
        long_text: the greedy text of `LONG` for the first prompt.
    """

    served: Served
    key_file: KeyFile
    rotate_s: float
    texts: dict[str, str] = field(default_factory=dict)
    long_text: str = ""
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    done: Counter[str] = field(default_factory=Counter)
    running: bool = True
    pending: set[object] = field(default_factory=set)

    async def learn(self) -> None:
        """Asks for the texts that answers must have later."""
        for prompt in PROMPTS:
            self.texts[prompt] = await self._text(prompt)
        self.long_text = await self._text(PROMPTS[0], **LONG)

    async def read(self) -> None:
        """A client that gets its whole answer, which must be right."""
        prompt = self.rng.choice(PROMPTS)
        if self.rng.random() < 0.7:
            text = await self._text(prompt)
        else:
            answer = await self._exchange(completion(prompt, self.key_file.keys.api, stream=False))
            assert status(answer) == 200, answer
            text = json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"]
        assert text == self.texts[prompt], (prompt, text)
        self.done["whole answers, each the same greedy text"] += 1

    async def leave(self) -> None:
        """A client that leaves some time after it has asked, or before it has."""
        content = completion(self.rng.choice(PROMPTS), self.key_file.keys.api, stream=True)
        _, writer = await asyncio.open_connection(*address(self.served.url))
        writer.write(content[: self.rng.choice((30, len(content) - 5, len(content)))])
        await asyncio.sleep(self.rng.random() * 0.5)
        writer.close()
        self.done["clients that left"] += 1

    async def leave_unread(self) -> None:
        """A client that reads the first bytes of a large stream and no more."""
        large = {"n": 16, "logprobs": 5, "max_tokens": 1000}
        content = completion("x", self.key_file.keys.api, stream=True, **large)
        reader, writer = await asyncio.open_connection(*address(self.served.url), limit=1)
        writer.write(content)
        await reader.read(1)
        await asyncio.sleep(3)
        writer.transport.abort()
        self.done["clients that did not read"] += 1

    async def send_bad(self) -> None:
        """A client whose body is refused."""
        path, content = self.rng.choice(BAD_BODIES)
        answer = await self._exchange(post(path, content, self.key_file.keys.api))
        found = status(answer)
        assert 400 <= found < 500, (path, content[:100], answer[:500])
        assert found != 401, "the key is valid"
        self.done["wrong bodies, each refused"] += 1
        await asyncio.sleep(0.05)

    async def send_wrong_key(self) -> None:
        """A client whose key does not open what it asks for, or does not any more."""
        keys, retired = self.key_file.keys, self.key_file.retired
        body = {"prompt": "a", "max_tokens": 1}
        attempts = [
            post(COMPLETIONS, body, ""),
            post(COMPLETIONS, body, NO_KEYS.api),
            post(COMPLETIONS, body, keys.metrics),
            post(SWITCH, {"proposer": "none"}, keys.api),
            *(post(COMPLETIONS, body, old.api) for old in retired[-1:]),
            *(post(SWITCH, {"proposer": "none"}, old.admin) for old in retired[-1:]),
        ]
        answer = await self._exchange(self.rng.choice(attempts))
        assert status(answer) == 401, answer[:500]
        self.done["wrong keys, each refused"] += 1
        await asyncio.sleep(0.1)

    async def switch(self) -> None:
        """A switch each second."""
        body = {"proposer": self.rng.choice(METHODS), "mode": self.rng.choice(MODES)}
        answer = await self._exchange(post(SWITCH, body, self.key_file.keys.admin))
        assert status(answer) == 200, answer
        self.done["switches"] += 1
        await asyncio.sleep(1)

    async def rotate(self) -> None:
        """Replaces all keys while a request with an old one runs, which must get its answer."""
        old = self.key_file.keys
        content = completion(PROMPTS[0], old.api, stream=True, **LONG)
        running = asyncio.create_task(exchange(self.served.url, content))
        await self.key_file.rotate(self.served, self._answered)
        assert not running.done(), "no request with an old key runs: make LONG longer"
        body = {"prompt": "a", "max_tokens": 1}
        for key, expected in ((old.api, 401), (self.key_file.keys.api, 200)):
            answer = await self._exchange(post(COMPLETIONS, body, key))
            assert status(answer) == expected, (key, answer[:500])
        assert stream_text(await running) == self.long_text
        self.done["rotations of all keys"] += 1

    async def run(self, seconds: float) -> None:
        """Runs all clients for a time; the first that sees something wrong ends it."""
        self.running = True
        acts = [
            *[self.read] * READERS,
            *[self.leave] * LEAVERS,
            *[self.leave_unread] * UNREAD,
            *[self.send_bad] * BAD,
            *[self.send_wrong_key] * KEYLESS,
            self.switch,
        ]
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as clients:
            for act in acts:
                clients.create_task(self._again(act))
            while (left := end - time.monotonic()) > 0:
                await asyncio.sleep(min(left, self.rotate_s))
                await self.rotate()
            self.running = False

    async def _again(self, act: Callable[[], Awaitable[None]]) -> None:
        while self.running:
            await act()

    async def _text(self, prompt: str, **fields: Any) -> str:
        content = completion(prompt, self.key_file.keys.api, stream=True, **fields)
        return stream_text(await self._exchange(content))

    async def _answered(self) -> None:
        """Waits until all that clients have sent by now is answered: it may have an old key."""
        sent = set(self.pending)
        async with asyncio.timeout(120):
            while sent & self.pending:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _exchange(self, content: bytes) -> bytes:
        this = object()
        self.pending.add(this)
        try:
            return await exchange(self.served.url, content)
        finally:
            self.pending.discard(this)
