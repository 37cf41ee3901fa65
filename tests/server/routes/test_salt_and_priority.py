"""`cache_salt` and `priority`, from the body to the engine's queue and prefix cache."""

import asyncio
from typing import Any

import pytest

from engine_adapter.seam.types import GenerationRequest
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually, record_requests

PROMPT = list(range(10, 90))


async def cached(gateway: Gateway, **fields: Any) -> int:
    response = await gateway.complete(PROMPT, max_tokens=2, temperature=0, **fields)
    assert response.status_code == 200, response.text
    number: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return number


async def test_both_reach_the_engine(start: StartGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await start(scheduling_policy="priority")
    seen: list[GenerationRequest] = record_requests(gateway, monkeypatch)
    await gateway.complete(["a", "b"], n=2, cache_salt="mine", priority=-5)
    await gateway.chat()
    assert [(r.cache_salt, r.priority) for r in seen] == [("mine", -5)] * 4 + [(None, 0)]


async def test_only_equal_salts_share_the_prefix_cache(gateway: Gateway) -> None:
    assert await cached(gateway) == 0
    assert await cached(gateway) > 0
    assert await cached(gateway, cache_salt="a") == 0
    assert await cached(gateway, cache_salt="b") == 0
    assert await cached(gateway, cache_salt="a") > 0


async def test_a_salt_does_not_change_the_text(gateway: Gateway) -> None:
    fields: dict[str, Any] = {"max_tokens": 20, "temperature": 0}
    plain = (await gateway.complete(PROMPT, **fields)).json()["choices"][0]["text"]
    salted = (await gateway.complete(PROMPT, **fields, cache_salt="s")).json()
    assert salted["choices"][0]["text"] == plain


@pytest.mark.parametrize("salt", ["", "x" * 1025, "\ud800", 5])
async def test_a_salt_that_is_not_a_text_of_that_length_is_refused(
    gateway: Gateway, salt: Any
) -> None:
    response = await gateway.complete(cache_salt=salt)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "cache_salt")


async def test_an_empty_salt_is_called_a_text(gateway: Gateway) -> None:
    message = (await gateway.complete(cache_salt="")).json()["error"]["message"]
    assert "1 character" in message


async def test_a_strict_server_refuses_a_priority_that_its_scheduler_does_not_know(
    start: StartGateway,
) -> None:
    gateway = await start(strict_fields=True)
    for ask in (gateway.complete, gateway.chat):
        error = (await ask(priority=1)).json()["error"]
        assert (error["param"], error["code"]) == ("priority", "unsupported_parameter")
        assert "--scheduling-policy priority" in error["message"]
        assert (await ask(priority=0, max_tokens=1)).status_code == 200


@pytest.mark.parametrize("in_engine", [1, 4], ids=["queue", "engine"])
async def test_the_lowest_priority_is_served_first(start: StartGateway, in_engine: int) -> None:
    gateway = await start(
        scheduling_policy="priority",
        max_num_seqs=1,
        max_engine_sequences=in_engine,
        engine_args={"fake_step_ms": 2},
    )
    order: list[int] = []

    async def ask(priority: int) -> None:
        await gateway.complete(PROMPT, max_tokens=8, ignore_eos=True, priority=priority)
        order.append(priority)

    endless = {"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True, "priority": 9}
    ahead = gateway.exchange("/v1/completions", endless)
    first = ahead.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    waiting = [asyncio.create_task(ask(priority)) for priority in (3, 1, 2)]
    slots = gateway.runtime.admission.slots
    await eventually(lambda: gateway.engine.num_waiting + slots.num_queued == 3)
    ahead.leave()
    await asyncio.gather(first, *waiting)
    assert order == [1, 2, 3]
