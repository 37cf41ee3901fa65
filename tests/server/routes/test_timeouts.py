"""The timeouts of the queue, of the first token, and of a whole request."""

import asyncio
import json
from typing import Any

import pytest

from server.control.admission.request_cost import RequestCost
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

ENDLESS: dict[str, Any] = {"prompt": [5], "max_tokens": 2000, "ignore_eos": True}
HUNG: dict[str, Any] = {"fake_hang_prompt": "hang", "fake_trouble_after_tokens": 0}


async def is_idle(gateway: Gateway) -> None:
    """Fails unless nothing is left of any request."""
    engine = gateway.engine
    await eventually(lambda: engine.num_running == engine.num_waiting == 0)
    assert gateway.runtime.admission.slots.in_use == 0
    assert len(gateway.runtime.switcher.in_flight) == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waits_too_long_is_503(start: StartGateway, stream: bool) -> None:
    gateway = await start(max_num_seqs=1, queue_timeout_s=0.05, engine_args={"fake_step_ms": 5})
    ahead = gateway.exchange("/v1/completions", ENDLESS)
    task = ahead.begin()
    await eventually(lambda: gateway.engine.num_running == 1, 20)
    response = await gateway.complete([7], stream=stream)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("queue_timeout", "server_error")
    assert "0.05 s" in error["message"]
    assert gateway.runtime.admission.slots.num_queued == 0
    assert gateway.sample("specgate_limited_requests_total", reason="queue_timeout") == 1
    ahead.leave()
    await task
    await is_idle(gateway)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_a_first_token_is_504(
    start: StartGateway, stream: bool, n: int
) -> None:
    gateway = await start(first_token_timeout_s=0.05, engine_args=HUNG)
    response = await gateway.complete("hang", stream=stream, n=n)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "first_token_timeout")
    assert gateway.sample("specgate_limited_requests_total", reason="first_token_timeout") == 1
    await is_idle(gateway)


async def test_after_the_first_byte_the_error_is_an_event(start: StartGateway) -> None:
    gateway = await start(keepalive_s=0.01, first_token_timeout_s=1.0, engine_args=HUNG)
    response = await gateway.complete("hang", stream=True)
    assert response.status_code == 200
    *_, error, done = [line for line in response.text.split("\n\n") if line.startswith("data")]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "first_token_timeout"
    assert done == "data: [DONE]"
    await is_idle(gateway)


@pytest.mark.parametrize("n", [1, 3])
async def test_a_request_that_takes_too_long_is_504(start: StartGateway, n: int) -> None:
    gateway = await start(request_timeout_s=0.1, engine_args={"fake_step_ms": 5})
    response = await gateway.post("/v1/completions", {**ENDLESS, "n": n})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
    assert gateway.sample("specgate_limited_requests_total", reason="request_timeout") == 1
    await is_idle(gateway)


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_that_takes_too_long_ends_with_an_error(start: StartGateway, n: int) -> None:
    gateway = await start(
        request_timeout_s=1.0, engine_args={"fake_step_ms": 5, "fake_acceptance": 0}
    )
    response = await gateway.post("/v1/completions", {**ENDLESS, "n": n, "stream": True})
    assert response.status_code == 200
    *texts, error, done = [line for line in response.text.split("\n\n") if line]
    assert len(texts) > 1
    assert not any('"finish_reason":"' in text for text in texts)
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "request_timeout"
    assert done == "data: [DONE]"
    await is_idle(gateway)


async def test_the_time_in_the_queue_counts_for_the_request(start: StartGateway) -> None:
    gateway = await start(max_num_seqs=1, request_timeout_s=0.2, engine_args=HUNG)
    first = asyncio.create_task(gateway.complete("hang"))
    await eventually(lambda: gateway.engine.num_running == 1, 20)
    second = await gateway.complete("hang too")
    assert (await first).status_code == second.status_code == 504
    await is_idle(gateway)


async def test_a_request_ends_in_the_queue_if_its_own_limit_comes_first(
    start: StartGateway,
) -> None:
    gateway = await start(
        max_num_seqs=1, queue_timeout_s=0, request_timeout_s=0.1, engine_args=HUNG
    )
    slots = gateway.runtime.admission.slots
    ticket = slots.ticket(RequestCost(None, 1, [1], 1))
    assert ticket.start_now()
    response = await gateway.complete([7])
    assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
    ticket.leave()
    await is_idle(gateway)


async def test_zero_sets_no_limit(start: StartGateway) -> None:
    gateway = await start(queue_timeout_s=0, first_token_timeout_s=0, request_timeout_s=0)
    assert (await gateway.complete([7], max_tokens=3)).status_code == 200
