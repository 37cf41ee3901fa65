"""The check of a request's constraint comes before its admission: it takes no slot and no turn."""

import asyncio
from typing import Any

import pytest

from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.types import StructuredOutput
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

SLOW = {"prompt": "a", "max_tokens": 2, "structured_outputs": {"json": {"type": "object"}}}


class Check:
    """A check of constraints that runs until it is released; then it may refuse."""

    def __init__(self, gateway: Gateway, error: Exception | None = None) -> None:
        self.running = 0
        self.keys: list[str | None] = []
        self.let_go = asyncio.Event()
        self._error = error
        gateway.engine.check_constraint = self._check  # type: ignore[method-assign]

    async def _check(self, constraint: StructuredOutput, key: str | None = None) -> None:
        self.running += 1
        self.keys.append(key)
        try:
            await self.let_go.wait()
        finally:
            self.running -= 1
        if self._error is not None:
            raise self._error


async def test_requests_whose_constraint_is_checked_hold_no_slot(start: StartGateway) -> None:
    gateway = await start(max_num_seqs=2)
    check = Check(gateway)
    slots = gateway.runtime.admission.slots
    tasks = [gateway.exchange("/v1/completions", SLOW) for _ in range(5)]
    running = [task.begin() for task in tasks]
    await eventually(lambda: check.running == 5)
    assert (slots.in_use, slots.num_queued) == (0, 0)
    assert (await gateway.complete("b", max_tokens=2)).status_code == 200
    switched = {"speculative_model": "ngram", "mode": "drain", "timeout_s": 1}
    assert (await gateway.post("/v1/switch_spec_method", switched)).status_code == 200
    check.let_go.set()
    await asyncio.gather(*running)
    assert [task.status for task in tasks] == [200] * 5
    assert slots.in_use == 0


@pytest.mark.parametrize("queued", [0, 3])
async def test_a_request_counts_as_queued_while_its_constraint_is_checked(
    start: StartGateway, queued: int
) -> None:
    gateway = await start(max_engine_sequences=2, max_queued_requests=queued)
    check = Check(gateway)
    # Those that the engine could take now, and those that the queue can take.
    tasks = [gateway.exchange("/v1/completions", SLOW) for _ in range(max(2, queued))]
    running = [task.begin() for task in tasks]
    await eventually(lambda: check.running == len(tasks))
    assert gateway.sample("specgate_queued_requests") == len(tasks)
    assert (gateway.sample("specgate_queued_prompt_tokens") or 0) >= len(tasks)
    refused = await gateway.post("/v1/completions", SLOW)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "server_overloaded")
    assert check.running == len(tasks)
    before_s = gateway.sample("specgate_queue_seconds_sum") or 0.0
    await asyncio.sleep(0.05)
    check.let_go.set()
    await asyncio.gather(*running)
    assert [task.status for task in tasks] == [200] * len(tasks)
    waited_s = (gateway.sample("specgate_queue_seconds_sum") or 0.0) - before_s
    assert waited_s >= 0.05 * len(tasks)
    assert gateway.sample("specgate_queued_requests") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_constraint_keeps_status_and_param(
    start: StartGateway, stream: bool
) -> None:
    gateway = await start()
    error = InvalidRequest("structured_outputs", "structured_outputs: too deep", "too_complex")
    Check(gateway, error).let_go.set()
    response = await gateway.post("/v1/completions", {**SLOW, "stream": stream})
    shown: dict[str, Any] = response.json()["error"]
    assert (response.status_code, shown["param"], shown["code"]) == (
        400,
        "structured_outputs",
        "too_complex",
    )
    assert gateway.runtime.admission.slots.in_use == 0


async def test_a_client_that_leaves_ends_the_check(start: StartGateway) -> None:
    gateway = await start()
    check = Check(gateway)
    exchange = gateway.exchange("/v1/completions", SLOW)
    task = exchange.begin()
    await eventually(lambda: check.running == 1)
    exchange.leave()
    await asyncio.wait_for(task, 60)
    assert (exchange.status, check.running) == (499, 0)


async def test_the_time_limit_of_a_request_counts_the_check(start: StartGateway) -> None:
    gateway = await start(request_timeout_s=0.05)
    check = Check(gateway)
    response = await gateway.post("/v1/completions", SLOW)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
    assert check.running == 0


async def test_the_wait_for_a_check_is_bounded_as_that_in_the_queue(start: StartGateway) -> None:
    gateway = await start(queue_timeout_s=0.05)
    check = Check(gateway)
    response = await gateway.post("/v1/completions", SLOW)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_timeout")
    assert check.running == 0
    assert gateway.sample("specgate_limited_requests_total", reason="queue_timeout") == 1


async def test_a_check_is_for_the_key_of_its_request(start: StartGateway) -> None:
    gateway = await start(named_api_key={"mine": "key-mine"})
    check = Check(gateway)
    check.let_go.set()
    headers = {"authorization": "Bearer key-mine"}
    assert (await gateway.post("/v1/completions", SLOW, headers=headers)).status_code == 200
    assert check.keys == ["mine"]


async def test_a_dead_engine_checks_nothing(gateway: Gateway) -> None:
    gateway.engine.die()
    response = await gateway.post("/v1/completions", SLOW)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
