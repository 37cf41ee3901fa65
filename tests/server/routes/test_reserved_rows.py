"""Rows that the keys with most slots leave free, so that requests of other keys start at once."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Exchange, Gateway, eventually

KEYS: dict[str, Any] = {
    "named_api_key": {"flood": "key-flood", "other": "key-other"},
    "admin_key": ["key-admin"],
}
SMALL: dict[str, Any] = {"prompt": [7], "max_tokens": 16, "ignore_eos": True, "temperature": 0}
LONG = {**SMALL, "max_tokens": 1500}


async def flooded(
    start: StartGateway, tokens: int = 1500, refused: int = 0, **settings: Any
) -> tuple[Gateway, list[Exchange]]:
    """A server of eight rows, and 100 long requests of one key that want them."""
    arguments = {"fake_step_ms": 1, "fake_acceptance": 0}
    gateway = await start(
        **{"max_num_seqs": 8, "spec_method": "none", "engine_args": arguments, **KEYS, **settings}
    )
    body = {**SMALL, "max_tokens": tokens}
    flood = [gateway.exchange("/v1/completions", body, key="key-flood") for _ in range(100)]
    tasks = [exchange.begin() for exchange in flood]
    slots = gateway.runtime.admission.slots
    await eventually(
        lambda: slots.num_queued + slots.in_use + sum(task.done() for task in tasks) == 100
    )
    assert sum(task.done() for task in tasks) == refused
    return gateway, flood


async def end(gateway: Gateway, flood: list[Exchange]) -> None:
    """Ends the flood; nothing may be left of it."""
    for exchange in flood:
        exchange.leave()
    slots = gateway.runtime.admission.slots
    await eventually(lambda: slots.in_use == slots.num_queued == gateway.engine.num_running == 0)


def bearer(name: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer key-{name}"}}


async def ask(gateway: Gateway, name: str) -> httpx.Response:
    return await gateway.post("/v1/completions", SMALL, **bearer(name))


async def steps_of(gateway: Gateway, name: str) -> float:
    """The engine's steps from a small request of a key to its answer."""
    before = gateway.steps
    assert (await ask(gateway, name)).status_code == 200
    return gateway.steps - before


async def test_a_key_with_long_requests_does_not_hold_up_another_one(start: StartGateway) -> None:
    gateway, flood = await flooded(start)
    assert gateway.runtime.admission.slots.in_use == 7
    for _ in range(5):
        # Not the 1,500 steps in which a long request ends.
        assert await steps_of(gateway, "other") <= 3 * SMALL["max_tokens"]
    await end(gateway, flood)


@pytest.mark.parametrize(
    "settings", [{"named_api_key": {"flood": "key-flood"}}, {"reserved_sequences": 0}]
)
async def test_a_key_has_all_slots_if_it_is_alone_or_nothing_is_reserved(
    start: StartGateway, settings: dict[str, Any]
) -> None:
    gateway, flood = await flooded(start, **settings)
    assert gateway.runtime.admission.slots.in_use == 10
    await end(gateway, flood)


async def test_a_key_is_served_beside_several_that_flood(start: StartGateway) -> None:
    names = {**KEYS["named_api_key"], "flood-too": "key-flood-too"}
    gateway, flood = await flooded(start, named_api_key=names)
    more = [gateway.exchange("/v1/completions", LONG, key="key-flood-too") for _ in range(100)]
    for exchange in more:
        exchange.begin()
    await eventually(lambda: gateway.runtime.admission.slots.num_queued == 192)
    # Each takes its first sequence of what the other left, and no further one.
    assert gateway.runtime.admission.slots.in_use == 8
    flood[0].leave()
    await eventually(lambda: gateway.engine.num_running == 7)
    assert await steps_of(gateway, "other") <= 3 * SMALL["max_tokens"]
    await end(gateway, [*flood, *more])


async def test_a_drain_and_its_switch_keep_the_rows_free(start: StartGateway) -> None:
    gateway, flood = await flooded(start, tokens=100)
    slots = gateway.runtime.admission.slots
    body = {"speculative_model": "draft", "mode": "drain", "timeout_s": 60}
    switch = asyncio.create_task(gateway.post("/v1/switch_spec_method", body, **bearer("admin")))
    await eventually(lambda: not slots.is_open)
    waiting = asyncio.create_task(ask(gateway, "other"))
    assert (await switch).status_code == 200
    assert (await waiting).status_code == 200
    assert await steps_of(gateway, "other") <= 3 * SMALL["max_tokens"]
    await end(gateway, flood)


async def test_without_a_queue_a_key_is_refused_what_it_must_leave_free(
    start: StartGateway,
) -> None:
    gateway, flood = await flooded(start, refused=93, max_queued_requests=0)
    assert [exchange.status for exchange in flood if exchange.sent].count(429) == 93
    assert (await ask(gateway, "other")).status_code == 200
    assert (await ask(gateway, "flood")).status_code == 429
    await end(gateway, flood)
