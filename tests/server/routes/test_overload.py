"""More requests than the engine can run: the queue, its refusals, and fairness of keys."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from engine_adapter.seam.types import StructuredOutput
from server.telemetry.http_metrics import GENERATING
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

SMALL: dict[str, Any] = {"prompt": [7], "max_tokens": 16, "ignore_eos": True, "temperature": 0}
ENDLESS: dict[str, Any] = {"prompt": [5], "max_tokens": 2000, "ignore_eos": True}


class Full:
    """A gateway whose engine has one slot, taken by an endless request."""

    def __init__(self, gateway: Gateway, key: str = "") -> None:
        self.gateway = gateway
        self._ahead = gateway.exchange("/v1/completions", ENDLESS, key=key)

    @property
    def queued(self) -> int:
        return self.gateway.runtime.admission.slots.num_queued

    async def begin(self) -> None:
        self._task = self._ahead.begin()
        await eventually(lambda: self.gateway.engine.num_running == 1, 20)

    async def queue(self, count: int, **more: Any) -> list["asyncio.Task[httpx.Response]"]:
        before = self.queued
        tasks = [
            asyncio.create_task(self.gateway.complete([7], max_tokens=2, **more))
            for _ in range(count)
        ]
        await eventually(lambda: self.queued == before + count)
        return tasks

    async def end(self) -> None:
        self._ahead.leave()
        await self._task


async def full(start: StartGateway, key: str = "", **settings: Any) -> Full:
    made = Full(await start(max_num_seqs=1, engine_args={"fake_step_ms": 1}, **settings), key)
    await made.begin()
    return made


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_429_with_retry_after_and_loses_no_request(
    start: StartGateway, stream: bool
) -> None:
    server = await full(start, max_queued_requests=3)
    waiting = await server.queue(3)
    refused = await server.gateway.complete([7], stream=stream)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "5"
    assert refused.json()["error"] == {
        "message": "The server is overloaded: its queue is full (3 of 3 requests). "
        "Try again later.",
        "type": "rate_limit_error",
        "param": None,
        "code": "server_overloaded",
    }
    # It has no chance, so its body is not looked at.
    assert (await server.gateway.complete([7], max_tokens=0)).status_code == 429
    await server.end()
    assert [(await task).status_code for task in waiting] == [200] * 3
    assert (await server.gateway.complete([7], max_tokens=1)).status_code == 200
    name = "specgate_limited_requests_total"
    assert server.gateway.sample(name, reason="server_overloaded") == 2
    assert server.gateway.sample("specgate_queue_seconds_count") == 5


async def test_a_queue_that_has_many_prompt_tokens_is_full(start: StartGateway) -> None:
    server = await full(start, max_queued_prompt_tokens=100)
    waiting = [
        asyncio.create_task(server.gateway.complete([7] * 500, max_tokens=2)),
    ]
    await eventually(lambda: server.queued == 1)
    refused = await server.gateway.complete([7] * 3)
    assert refused.status_code == 429
    assert "(500 of 100 prompt tokens are queued, and this one has 3)" in refused.text
    await server.end()
    assert (await waiting[0]).status_code == 200


async def test_without_a_queue_a_request_is_served_or_refused_at_once(start: StartGateway) -> None:
    server = await full(start, max_queued_requests=0)
    refused = await server.gateway.complete([7])
    assert refused.status_code == 429
    assert refused.json()["error"]["message"] == (
        "The server is overloaded: the request cannot begin now, and this server has no queue. "
        "Try again later."
    )
    await server.end()
    assert (await server.gateway.complete([7], max_tokens=1)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_the_queue_is_taken_out(
    start: StartGateway, stream: bool
) -> None:
    server = await full(start)
    exchange = server.gateway.exchange("/v1/completions", {**SMALL, "stream": stream})
    task = exchange.begin()
    await eventually(lambda: server.queued == 1)
    exchange.leave()
    await asyncio.wait_for(task, 60)
    assert (exchange.status, server.queued) == (499, 0)
    # The one that is ahead did not wait; this one did, and is counted too.
    assert server.gateway.sample("specgate_queue_seconds_count") == 2
    await server.end()
    assert server.gateway.runtime.admission.slots.in_use == 0


async def test_a_queued_request_fails_at_once_when_the_engine_dies(start: StartGateway) -> None:
    server = await full(start)
    waiting = await server.queue(3)
    server.gateway.engine.die(retry_after_s=7)
    answers = [await asyncio.wait_for(task, 60) for task in waiting]
    assert [answer.json()["error"]["code"] for answer in answers] == ["engine_dead"] * 3
    await server.end()


KEYS = {"named_api_key": {"flood": "key-flood", "other": "key-other"}, "api_key": ["key-plain"]}


def bearer(name: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer key-{name}"}}


async def test_a_key_that_floods_does_not_hold_up_another(start: StartGateway) -> None:
    gateway = await start(max_num_seqs=4, engine_args={"fake_step_ms": 1}, **KEYS)
    ended: list[str] = []

    async def ask(name: str) -> None:
        body = {**SMALL, "temperature": 0}
        response = await gateway.post("/v1/completions", body, **bearer(name))
        assert response.status_code == 200
        ended.append(name)

    slots = gateway.runtime.admission.slots
    slots.close()
    flood = [asyncio.create_task(ask("flood")) for _ in range(60)]
    await eventually(lambda: slots.num_queued == 60)
    slots.open()
    await asyncio.gather(*(ask("other") for _ in range(8)))
    # Of those that began from then on about every second one was of the other key.
    assert ended.index("other") < 12
    assert ended.count("flood") < 30
    await asyncio.gather(*flood)
    assert ended.count("flood") == 60


class Crowd:
    """Requests of several keys to a server whose only slot is taken."""

    def __init__(self, server: Full) -> None:
        self.server = server
        self.tasks: dict[str, asyncio.Task[httpx.Response]] = {}

    async def come(self, name: str, **more: Any) -> "asyncio.Task[httpx.Response]":
        """A request of the key that begins the name; it is queued, or answered."""
        body = {"prompt": [7], "max_tokens": 2, **more}
        admission = self.server.gateway.runtime.admission
        before = self.server.gateway.sample("specgate_limited_requests_total", reason=OVERLOADED)
        queued = admission.num_queued
        task = self.tasks[name] = asyncio.create_task(
            self.server.gateway.post("/v1/completions", body, **bearer(name.split()[0]))
        )
        await eventually(
            lambda: (
                admission.num_queued > queued
                or task.done()
                or self.server.gateway.sample("specgate_limited_requests_total", reason=OVERLOADED)
                != before
            )
        )
        return task

    async def refused(self, name: str) -> str:
        """The message of the request's 429."""
        answer = await asyncio.wait_for(self.tasks.pop(name), 60)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (429, OVERLOADED)
        assert answer.headers["retry-after"] == "5"
        return str(error["message"])

    async def served(self) -> list[str]:
        """Frees the slot, and returns who is answered: all that are left."""
        await self.server.end()
        names = list(self.tasks)
        assert [(await self.tasks[name]).status_code for name in names] == [200] * len(names)
        assert self.server.gateway.runtime.admission.slots.in_use == 0
        assert self.server.gateway.runtime.admission.num_queued == 0
        return names


OVERLOADED = "server_overloaded"
DISPLACED = (
    "The server is overloaded: its queue is full, and no API key has more in it than this one. "
    "Try again later."
)


async def crowd(start: StartGateway, **settings: Any) -> Crowd:
    return Crowd(await full(start, "key-plain", **KEYS, **settings))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_that_fills_the_queue_gives_a_place_to_another(
    start: StartGateway, stream: bool
) -> None:
    people = await crowd(start, max_queued_requests=3)
    for name in ("flood 1", "flood 2", "flood 3"):
        await people.come(name, stream=stream)
    await people.come("flood 4")
    assert "its queue is full (3 of 3 requests)" in await people.refused("flood 4")
    await people.come("other 1")
    assert await people.refused("flood 3") == DISPLACED
    await people.come("other 2")
    assert "its queue is full (3 of 3 requests)" in await people.refused("other 2")
    assert await people.served() == ["flood 1", "flood 2", "other 1"]


async def test_a_key_that_fills_the_queue_with_prompt_tokens_gives_some_to_another(
    start: StartGateway,
) -> None:
    people = await crowd(start, max_queued_prompt_tokens=100)
    for name in ("flood 1", "flood 2", "flood 3", "flood 4"):
        await people.come(name, prompt=[7] * 25)
    await people.come("other 1", prompt=[7] * 40)
    assert await people.refused("flood 4") == await people.refused("flood 3") == DISPLACED
    assert await people.served() == ["flood 1", "flood 2", "other 1"]


async def test_requests_without_a_key_share_the_places_of_one(start: StartGateway) -> None:
    server = await full(start, max_queued_requests=3)
    waiting = await server.queue(3)
    assert (await server.gateway.complete([7])).status_code == 429
    await server.end()
    assert [(await task).status_code for task in waiting] == [200] * 3


async def test_the_request_of_a_key_that_goes_last_gives_its_place(start: StartGateway) -> None:
    people = await crowd(start, max_queued_requests=3, scheduling_policy="priority")
    await people.come("flood late", priority=4)
    await people.come("flood 1")
    await people.come("flood 2", priority=1)
    await people.come("other 1", priority=9)
    assert await people.refused("flood late") == DISPLACED
    assert await people.served() == ["flood 1", "flood 2", "other 1"]


async def test_a_request_that_a_drain_holds_gives_its_place_and_the_others_keep_their_order(
    start: StartGateway,
) -> None:
    people = await crowd(start, max_queued_requests=3)
    gateway = people.server.gateway
    slots = gateway.runtime.admission.slots
    slots.close()
    for name in ("flood 1", "flood 2", "flood 3"):
        await people.come(name)
    await people.come("other 1")
    assert await people.refused("flood 3") == DISPLACED
    slots.open()
    assert await people.served() == ["flood 1", "flood 2", "other 1"]


async def test_a_request_whose_format_is_checked_gives_its_place(start: StartGateway) -> None:
    people = await crowd(start, max_queued_requests=2)
    running, checking = 0, asyncio.Event()

    async def check(constraint: StructuredOutput, key: str | None = None) -> None:
        nonlocal running
        running += 1
        try:
            await checking.wait()
        finally:
            running -= 1

    people.server.gateway.engine.check_constraint = check  # type: ignore[method-assign]
    form = {"structured_outputs": {"json": {"type": "object"}}}
    await people.come("flood 1", **form)
    await people.come("flood 2", **form)
    await people.come("other 1", **form)
    assert await people.refused("flood 2") == DISPLACED
    assert running == 2
    checking.set()
    assert await people.served() == ["flood 1", "other 1"]


@pytest.mark.parametrize("path", sorted(GENERATING))
async def test_a_request_without_a_chance_is_refused_before_its_body_is_read(
    start: StartGateway, path: str
) -> None:
    people = await crowd(start, max_queued_requests=2)
    await people.come("flood 1")
    await people.come("flood 2")
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"{}"

    async def ask(name: str) -> int:
        headers = {"content-type": "application/json", "authorization": f"Bearer key-{name}"}
        response = await people.server.gateway.client.post(path, content=body(), headers=headers)
        return response.status_code

    assert (await ask("flood"), read) == (429, 0)
    # This key would get a place.
    assert (await ask("other"), read) == (400, 1)
    assert await people.served() == ["flood 1", "flood 2"]


@pytest.mark.prove
@pytest.mark.parametrize("stream", [True, False])
async def test_two_thousand_requests_at_once_are_all_answered(
    start: StartGateway, stream: bool
) -> None:
    gateway = await start(max_queued_requests=2000, engine_args={"fake_step_ms": 0})
    body = {**SMALL, "stream": stream}
    exchanges = [gateway.exchange("/v1/completions", body) for _ in range(2000)]
    await asyncio.gather(*(exchange.begin() for exchange in exchanges))
    assert {exchange.status for exchange in exchanges} == {200}
    end = "data: [DONE]" if stream else '"finish_reason":"length"'
    assert sum(end in exchange.text for exchange in exchanges) == 2000
    assert gateway.runtime.admission.slots.in_use == 0
    assert len(gateway.runtime.switcher.in_flight) == 0


async def test_a_queue_has_no_room_for_requests_that_arrive_at_the_same_time(
    start: StartGateway,
) -> None:
    gateway = await start(
        max_num_seqs=2,
        max_engine_sequences=2,
        max_request_sequences=2,
        max_queued_requests=2,
        engine_args={"fake_step_ms": 1},
    )
    exchanges = [gateway.exchange("/v1/completions", SMALL) for _ in range(20)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(exchange.begin() for exchange in exchanges))
    statuses = [exchange.status for exchange in exchanges]
    assert (statuses.count(200), statuses.count(429)) == (4, 16)
