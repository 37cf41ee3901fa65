"""Requests of many sequences: they run in slices, so a small request beside them starts at once."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Exchange, Gateway, eventually

SMALL: dict[str, Any] = {"prompt": [7], "max_tokens": 16, "ignore_eos": True, "temperature": 0}
LARGE: dict[str, dict[str, Any]] = {
    "n 128 x 16 prompts": {"prompt": [[i] for i in range(5, 21)], "n": 128, "max_tokens": 200},
    "n 128 with logprobs 20": {"prompt": [5], "n": 128, "logprobs": 20, "max_tokens": 200},
    "256 echoed prompts": {
        "prompt": [[i] * 300 for i in range(5, 261)],
        "echo": True,
        "logprobs": 5,
        "max_tokens": 4,
    },
}


@pytest.mark.parametrize("name", LARGE)
async def test_a_small_request_beside_a_large_one_takes_at_most_three_times_as_long(
    start: StartGateway, name: str
) -> None:
    gateway = await start(
        max_num_seqs=64,
        max_request_sequences=8,
        engine_args={"fake_step_ms": 1, "fake_acceptance": 0},
        spec_method="none",
    )
    alone = await steps_of(gateway, gateway.exchange("/v1/completions", SMALL))
    large = gateway.exchange("/v1/completions", {**LARGE[name], "ignore_eos": True})
    task = large.begin()
    most = 8
    await eventually(lambda: gateway.engine.num_running > 0, 20)
    for _ in range(10):
        beside = await steps_of(
            gateway,
            gateway.exchange("/v1/completions", SMALL),
            # Its steps carry a slice of the large request, not all of it.
            lambda: (
                gateway.engine.num_running + gateway.engine.num_waiting <= most + 1
                and not gateway.runtime.admission.slots.num_queued
            ),
        )
        assert beside <= 3 * alone
    assert not task.done()
    large.leave()
    await task
    assert gateway.runtime.admission.slots.in_use == 0
    assert gateway.engine.num_running == gateway.engine.num_waiting == 0


async def steps_of(
    gateway: Gateway, exchange: Exchange, holds: Callable[[], bool] = lambda: True
) -> float:
    """The engine's steps from the request to its answer; `holds` is checked meanwhile."""
    before = gateway.steps
    task = exchange.begin()
    while not task.done():
        assert holds()
        await asyncio.sleep(0)
    await task
    assert exchange.status == 200
    return gateway.steps - before


async def test_all_sequences_of_a_large_request_are_answered(start: StartGateway) -> None:
    gateway = await start(max_num_seqs=8)
    body = (await gateway.complete([[i] for i in range(5, 15)], n=6, max_tokens=3)).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(60))
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    assert body["usage"]["completion_tokens"] == 180
