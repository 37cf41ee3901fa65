"""A wall clock that jumps by an hour moves timestamps, and nothing that waits or counts."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from server.fleet.desired import DesiredState
from server.fleet.replica import Way
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

HOUR = 3600.0
KEY = {"authorization": "Bearer sk-team"}
ADMIN = {"authorization": "Bearer sk-admin"}
KEYS: dict[str, Any] = {"named_api_key": {"team": "sk-team"}, "admin_key": ["sk-admin"]}


@pytest.fixture(params=[HOUR, -HOUR], ids=["forward", "back"])
def jump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Sets the wall clock forward or back, and returns the time that it shows then."""
    true_time, by = time.time, float(request.param)

    def jump() -> float:
        monkeypatch.setattr(time, "time", lambda: true_time() + by)
        return time.time()

    return jump


async def complete(gateway: Gateway, max_tokens: int = 1, **fields: object) -> httpx.Response:
    body = {"prompt": "a", "max_tokens": max_tokens, **fields}
    return await gateway.post("/v1/completions", body, headers=KEY)


async def test_the_rate_of_a_key_is_neither_given_back_nor_taken(
    start: StartGateway, jump: Callable[[], float]
) -> None:
    gateway = await start(max_key_requests_per_minute=2, **KEYS)
    for _ in range(2):
        assert (await complete(gateway)).status_code == 200
    jump()
    refused = await complete(gateway)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 60


async def test_requests_that_run_or_wait_are_not_ended(
    start: StartGateway, jump: Callable[[], float]
) -> None:
    gateway = await start(
        max_engine_sequences=1,
        queue_timeout_s=600.0,
        first_token_timeout_s=600.0,
        request_timeout_s=1200.0,
        engine_args={"fake_step_ms": 2, "fake_acceptance": 0},
        **KEYS,
    )
    running = asyncio.create_task(complete(gateway, 400, ignore_eos=True))
    await eventually(lambda: gateway.engine.num_running == 1)
    waiting = asyncio.create_task(complete(gateway))
    await eventually(lambda: gateway.runtime.admission.num_queued == 1)
    now = jump()
    for answer in await asyncio.gather(running, waiting):
        assert answer.status_code == 200
    # What is told as a time is the wall clock's.
    assert abs((await complete(gateway)).json()["created"] - now) < HOUR / 2


async def test_a_fleet_state_keeps_its_rank_and_a_drain_its_limit(
    start: StartGateway, jump: Callable[[], float]
) -> None:
    gateway = await start(engine_args={"fake_step_ms": 2, "fake_acceptance": 0}, **KEYS)
    member, switcher = gateway.runtime.fleet, gateway.runtime.switcher
    running = asyncio.create_task(complete(gateway, 400, ignore_eos=True))
    await eventually(lambda: gateway.engine.num_running == 1)
    draining = asyncio.create_task(member.set(DesiredState(2, "ngram", 5), Way("drain", 600.0)))
    await eventually(lambda: switcher.drain is not None)
    jump()
    await asyncio.sleep(0)
    assert switcher.busy, "the drain ended"
    state = await member.set(DesiredState(1, "suffix", 5))
    assert state.fleet.desired == DesiredState(2, "ngram", 5)
    assert (await running).status_code == 200
    assert (await draining).switch is not None
    drain = {"proposer": "suffix", "mode": "drain", "timeout_s": 600}
    drained = await gateway.post("/v1/switch_spec_method", drain, headers=ADMIN)
    assert drained.status_code == 200


async def test_figures_stay_and_records_stay_in_order(
    start: StartGateway, jump: Callable[[], float]
) -> None:
    gateway = await start(**KEYS)
    assert (await complete(gateway, 50, ignore_eos=True)).status_code == 200
    switch = "/v1/switch_spec_method"
    assert (await gateway.post(switch, {"proposer": "ngram"}, headers=ADMIN)).status_code == 200
    figures = gateway.runtime.metrics.rolling_stats()
    assert figures["draft"].drafts > 0
    now = jump()
    assert gateway.runtime.metrics.rolling_stats() == figures
    assert (await gateway.post(switch, {"proposer": "suffix"}, headers=ADMIN)).status_code == 200
    shown = (await gateway.client.get("/v1/spec_method", headers=ADMIN)).json()
    assert [record["to"]["spec_method"] for record in shown["switches"]] == ["suffix", "ngram"]
    assert abs(shown["since"] - now) < HOUR / 2
    assert all(0 <= record["took_ms"] < HOUR * 1e3 / 2 for record in shown["switches"])


async def test_a_stored_response_stays_and_is_continued(
    start: StartGateway, jump: Callable[[], float]
) -> None:
    gateway = await start(**KEYS)
    body: dict[str, Any] = {"input": "a", "max_output_tokens": 16}
    made = (await gateway.post("/v1/responses", body, headers=KEY)).json()
    now = jump()
    path = f"/v1/responses/{made['id']}"
    assert (await gateway.client.get(path, headers=KEY)).json() == made
    body = {**body, "previous_response_id": made["id"]}
    again = await gateway.post("/v1/responses", body, headers=KEY)
    assert again.status_code == 200
    assert abs(again.json()["created_at"] - now) < HOUR / 2
