"""A mixed load for minutes: nothing is lost or wrong, and nothing grows.

`SOAK_S` sets its seconds; `make prove` runs ten minutes.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.raw_http import address, exchange, request, status, stream_text
from tests.e2e.served import Served

SOAK_S = float(os.environ.get("SOAK_S", "600"))

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(SOAK_S + 300)]

CONNECTIONS = 100
READERS, LEAVERS, UNREAD, BAD = 56, 12, 6, 6
"""Clients of each kind: 80 % of the connections."""

METHODS = ("none", "ngram", "suffix", "draft")
PROMPTS = [f"def f{i}(x):" for i in range(20)]

BAD_BODIES: list[tuple[str, bytes]] = [
    ("/v1/completions", b'{"prompt": '),
    ("/v1/completions", b'{"prompt": 1}'),
    ("/v1/completions", b'{"prompt": "a", "n": 1000}'),
    ("/v1/completions", json.dumps({"prompt": "a", "stop": ["x" * 9] * 50_000}).encode()),
    ("/v1/completions", b"[" * 100_000),
    ("/v1/chat/completions", b'{"messages": []}'),
    ("/v1/chat/completions", json.dumps({"messages": [{"role": "x"}] * 3000}).encode()),
    ("/v1/completions", json.dumps({"prompt": [5] * 200_000}).encode()),
    ("/v1/completions", json.dumps({f"f{i}": 1 for i in range(1000)}).encode()),
    ("/detokenize", b'{"tokens": [999999999]}'),
    ("/none-such", b"{}"),
]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    engine = json.dumps({"fake_step_ms": 5})
    flags = ("--max-connections", str(CONNECTIONS), "--max-unsent-bytes", "128KiB")
    served = Served.start_beside(
        tmp_path / "server.log",
        *("--engine", "fake", "--engine-args", engine, "--no-access-log"),
        *("--write-timeout-s", "5", *flags),
    )
    try:
        yield served
        assert served.process.poll() is None, served.tail()
        assert served.stop() == 0, served.tail()
        assert "Traceback" not in served.log.read_text(errors="replace"), served.tail()
    finally:
        served.process.kill()


def body(prompt: str, *, stream: bool, **fields: Any) -> bytes:
    content = {"prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    return request("/v1/completions", {**content, "stream": stream, **fields}, "connection: close")


@dataclass
class Soak:
    """The clients of a soak, and what they have seen."""

    url: str
    texts: dict[str, str]
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    done: Counter[str] = field(default_factory=Counter)
    running: bool = True

    async def read(self) -> None:
        """A client that gets its whole answer, which must be right."""
        prompt = self.rng.choice(PROMPTS)
        stream = self.rng.random() < 0.7
        answer = await exchange(self.url, body(prompt, stream=stream))
        if stream:
            text = stream_text(answer)
        else:
            assert status(answer) == 200, answer
            text = json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"]
        assert text == self.texts[prompt], (prompt, text)
        self.done["read"] += 1

    async def leave(self) -> None:
        """A client that leaves some time after it has asked, or before it has."""
        content = body(self.rng.choice(PROMPTS), stream=True)
        _, writer = await asyncio.open_connection(*address(self.url))
        writer.write(content[: self.rng.choice((30, len(content) - 5, len(content)))])
        await asyncio.sleep(self.rng.random() * 0.5)
        writer.close()
        self.done["left"] += 1

    async def leave_unread(self) -> None:
        """A client that reads the first bytes of a large stream and no more."""
        content = body("x", stream=True, n=16, logprobs=5, max_tokens=1000)
        reader, writer = await asyncio.open_connection(*address(self.url), limit=1)
        writer.write(content)
        await reader.readuntil(b"\r")
        await asyncio.sleep(3)
        writer.transport.abort()
        self.done["unread"] += 1

    async def send_bad(self) -> None:
        """A client whose body is refused."""
        path, content = self.rng.choice(BAD_BODIES)
        answer = await exchange(self.url, request(path, content, "connection: close"))
        assert 400 <= status(answer) < 500, (path, content[:100], answer[:500])
        self.done["refused"] += 1
        await asyncio.sleep(0.05)

    async def switch(self) -> None:
        """A switch each second."""
        switch = {"proposer": self.rng.choice(METHODS), "mode": self.rng.choice(MODES)}
        path = "/v1/switch_spec_method"
        answer = await exchange(self.url, request(path, switch, "connection: close"))
        assert status(answer) == 200, answer
        self.done["switched"] += 1
        await asyncio.sleep(1)

    async def again(self, act: Callable[[], Awaitable[None]]) -> None:
        while self.running:
            await act()

    async def run(self, seconds: float) -> None:
        """Runs all clients for a time; the first that sees something wrong ends it."""
        self.running = True
        acts = [
            *[self.read] * READERS,
            *[self.leave] * LEAVERS,
            *[self.leave_unread] * UNREAD,
            *[self.send_bad] * BAD,
            self.switch,
        ]
        async with asyncio.TaskGroup() as clients:
            for act in acts:
                clients.create_task(self.again(act))
            await asyncio.sleep(seconds)
            self.running = False


MODES = ("immediate", "new_requests")


@dataclass(frozen=True)
class Size:
    """What a server holds while nobody uses it."""

    rss: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, served: Served) -> "Size":
        served.wait_until_idle(60)
        deadline = time.monotonic() + 30
        while served.scrape()("specgate_connections") > 1:
            assert time.monotonic() < deadline, "connections stay open"
            time.sleep(0.2)
        process = psutil.Process(served.process.pid)
        return cls(process.memory_info().rss, process.num_fds(), process.num_threads())


async def test_a_mixed_load_loses_nothing_and_nothing_grows(served: Served) -> None:
    texts = {}
    for prompt in PROMPTS:
        texts[prompt] = stream_text(await exchange(served.url, body(prompt, stream=True)))
    soak = Soak(served.url, texts)
    # Caches and pools fill in the first tenth.
    await soak.run(max(SOAK_S / 10, 10))
    before = await asyncio.to_thread(Size.of, served)
    soak.done.clear()
    await soak.run(SOAK_S)
    after = await asyncio.to_thread(Size.of, served)
    print(f"{dict(soak.done)}\n{before}\n{after}")
    assert all(soak.done[kind] for kind in ("read", "left", "unread", "refused", "switched"))
    assert after.rss <= before.rss * 1.03
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
    scrape = served.scrape()
    assert scrape("specgate_connections_closed_total", reason="refused") == 0
    assert scrape("specgate_http_requests_total", status="500") == 0
