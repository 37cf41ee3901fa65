"""A client that disconnects ends its sequences immediately, in every phase."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Exchange, Gateway, eventually

BODY: dict[str, Any] = {"prompt": "def f(x):", "max_tokens": 500, "ignore_eos": True}


async def _ends_everything(gateway: Gateway, exchange: Exchange, task: asyncio.Task[None]) -> None:
    exchange.leave()
    await asyncio.wait_for(task, 60)
    assert '"finish_reason":"' not in exchange.text, "it ended by itself"
    assert gateway.engine.num_running == gateway.engine.num_waiting == 0
    assert dict(gateway.runtime.switcher.in_flight.by_proposer) == {}
    # The engine still serves others.
    assert (await gateway.complete("b", max_tokens=1)).status_code == 200


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_while_generating(start: StartGateway, stream: bool, n: int) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    exchange = gateway.exchange("/v1/completions", {**BODY, "stream": stream, "n": n})
    task = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == n)
    if stream:
        await eventually(lambda: len(exchange.sent) > 2)
    await _ends_everything(gateway, exchange, task)


@pytest.mark.parametrize("stream", [False, True])
async def test_while_queued_in_the_engine(start: StartGateway, stream: bool) -> None:
    gateway = await start(max_num_seqs=1, max_engine_sequences=2, engine_args={"fake_step_ms": 5})
    ahead = gateway.exchange("/v1/completions", BODY)
    first = ahead.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    exchange = gateway.exchange("/v1/completions", {**BODY, "stream": stream})
    task = exchange.begin()
    await eventually(lambda: gateway.engine.num_waiting == 1)
    exchange.leave()
    await asyncio.wait_for(task, 60)
    assert (gateway.engine.num_running, gateway.engine.num_waiting) == (1, 0)
    await _ends_everything(gateway, ahead, first)


@pytest.mark.parametrize("stream", [False, True])
async def test_in_prefill(start: StartGateway, stream: bool) -> None:
    gateway = await start(engine_args={"fake_prefill_token_ms": 30})
    exchange = gateway.exchange("/v1/completions", {**BODY, "stream": stream})
    task = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    assert exchange.sent == []
    await _ends_everything(gateway, exchange, task)


async def test_a_disconnect_before_the_first_byte_counts_as_499(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    exchange = gateway.exchange("/v1/chat/completions", {"messages": [_user()]})
    task = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    exchange.leave()
    await task
    name = "specgate_http_requests_total"
    labels = {"route": "/v1/chat/completions", "method": "POST", "status": "499"}
    assert gateway.sample(name, **labels) == 1


async def test_stream_that_cannot_be_written_ends_its_sequence(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 1})
    exchange = gateway.exchange("/v1/completions", {**BODY, "stream": True})

    async def broken(message: MutableMapping[str, Any]) -> None:
        exchange.sent.append(message)
        if len(exchange.sent) > 3:
            raise OSError("the pipe is broken")

    exchange._send = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="pipe"):
        await exchange.begin()
    assert gateway.engine.num_running == 0
    assert len(exchange.sent) == 4


async def test_a_disconnect_does_not_affect_other_requests(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5, "fake_acceptance": 0})
    stay = [gateway.complete(f"x = {i}", temperature=0, max_tokens=40) for i in range(4)]
    staying = [asyncio.create_task(request) for request in stay]
    exchange = gateway.exchange("/v1/completions", {**BODY, "stream": True})
    task = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 5)
    exchange.leave()
    await task
    texts = [(await request).json()["choices"][0]["text"] for request in staying]
    undisturbed = [
        (await gateway.complete(f"x = {i}", temperature=0, max_tokens=40)).json() for i in range(4)
    ]
    assert texts == [body["choices"][0]["text"] for body in undisturbed]


def _user() -> dict[str, str]:
    return {"role": "user", "content": "hi"}
