"""Mixed load on servers: every proposer and policy, streams, switches in every mode, errors."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from engine_adapter.policies.names import POLICY_NAMES
from tests.e2e.served import PROPOSERS
from tests.e2e.traffic import chat, leave

RULES = '[{"name": "long", "match": {"prompt_tokens": {"min": 120}}, "use": {"proposer": "ngram"}}]'
"""A routing rule that some of the demo's prompts match."""

CLIENTS = 6
METHODS = (None, *PROPOSERS, None, "none", *POLICY_NAMES, "auto")
MODES = ("immediate", "new_requests", "drain")

ENOUGH_S = 180.0
"""How long a busy machine may take for enough answers, in seconds."""

Event = Callable[[], Awaitable[None]]


@dataclass
class MixedLoad:
    """Clients of one server, and what their requests ended as.

    Attributes:
        statuses: responses by status; "cut off" for streams that ended with an error.
        outcomes: switches by status.
    """

    url: str
    statuses: Counter[int | str] = field(default_factory=Counter)
    outcomes: Counter[int] = field(default_factory=Counter)
    stopping: bool = False
    _counted: asyncio.Condition = field(default_factory=asyncio.Condition)
    _methods: Iterator[str | None] = field(default_factory=lambda: itertools.cycle(METHODS))

    async def run(
        self,
        seconds: float,
        events: Sequence[tuple[float, Event]] = (),
        *,
        answers: int = 50,
        switches: int = 3,
    ) -> None:
        """Sends requests and switches; each event begins at its second.

        Args:
            seconds: how long, or longer: until there are more answers and switches than these.
        """
        async with (
            httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=120) as client,
            asyncio.TaskGroup() as group,
        ):
            for i in range(CLIENTS):
                group.create_task(self._ask(client, random.Random(i), i))
            group.create_task(self._switch(client, seconds))
            began = asyncio.get_running_loop().time()
            for at_s, event in events:
                await asyncio.sleep(max(0.0, began + at_s - asyncio.get_running_loop().time()))
                await event()
            await asyncio.sleep(max(0.0, began + seconds - asyncio.get_running_loop().time()))
            async with asyncio.timeout(ENOUGH_S), self._counted:
                await self._counted.wait_for(
                    lambda: self.statuses[200] > answers and self.outcomes[200] > switches
                )
            self.stopping = True

    async def _ask(self, client: httpx.AsyncClient, choose: random.Random, i: int) -> None:
        for body in self._bodies(choose, i):
            if self.stopping:
                return
            if choose.random() < 0.1:
                await self._leave(client, body)
            else:
                await self._read(client, body)
            if choose.random() < 0.3:
                await asyncio.sleep(choose.random() / 2)

    async def _count(self, counts: Counter[Any], key: int | str) -> None:
        async with self._counted:
            counts[key] += 1
            self._counted.notify_all()

    def _bodies(self, choose: random.Random, i: int) -> Iterator[dict[str, Any]]:
        for number in itertools.count(i, CLIENTS):
            method = next(self._methods)
            fields: dict[str, Any] = {"max_tokens": choose.choice((16, 64, 160))}
            if method is not None:
                fields["spec_decode"] = {"proposer": method}
            yield chat(number, **fields)

    async def _read(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = [line async for line in response.aiter_lines() if line]
        whole = response.status_code != 200 or not any('"error"' in line for line in lines)
        await self._count(self.statuses, response.status_code if whole else "cut off")
        if response.status_code != 200:
            await asyncio.sleep(1)

    async def _leave(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        try:
            await leave(client, body)
        except (AssertionError, StopAsyncIteration):
            # The engine is being replaced: the stream was refused or ended early.
            self.statuses["cut off"] += 1

    async def _switch(self, client: httpx.AsyncClient, seconds: float) -> None:
        names = itertools.cycle((*PROPOSERS, "none", "auto"))
        # Each mode comes often enough, and most of the time "auto" decides.
        for number, name in enumerate(names):
            body: dict[str, Any] = {"speculative_model": name, "mode": MODES[number % len(MODES)]}
            if body["mode"] == "drain":
                body |= {"timeout_s": (0.05, 20.0)[number // len(MODES) % 2]}
            response = await client.post("/v1/switch_spec_method", json=body)
            await self._count(self.outcomes, response.status_code)
            for _ in range(10):
                await asyncio.sleep(seconds / 150)
                if self.stopping:
                    return
