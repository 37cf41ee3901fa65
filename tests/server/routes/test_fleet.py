"""The two calls of a fleet switch over HTTP, and their refusals."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

CHECK, SET = "/v1/check_switch", "/v1/fleet_method"
DRAFT = {"spec_method": "draft", "num_speculative_tokens": 4}
NGRAM = {"spec_method": "ngram", "num_speculative_tokens": 3}
STATE = NGRAM | {"generation": 4, "policies": {"load": {"disable_by_batch_size": 3}}}


def code(response: httpx.Response) -> tuple[int, Any]:
    return response.status_code, response.json()["error"]["code"]


async def put(gateway: Gateway, **changed: Any) -> httpx.Response:
    return await gateway.client.put(SET, json=STATE | changed)


async def test_a_check_changes_nothing(gateway: Gateway) -> None:
    body = {"speculative_model": "[ngram]", "num_speculative_tokens": 3, "policies": {"auto": {}}}
    checked = await gateway.post(CHECK, body)
    assert checked.json() == {
        "active": DRAFT,
        "to": NGRAM,
        "fleet": {
            **{"generation": 0, "switching": False},
            **{"desired": None, "lag": None},
        },
    }
    assert (await gateway.client.get("/v1/spec_method")).json()["switches"] == []


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, (400, "missing_required_parameter")),
        ({"proposer": "ngram", "on_timeout": "move"}, (400, None)),
        ({"proposer": "ngram", "switch_id": "a"}, (400, "unknown_parameter")),
    ],
)
async def test_a_body_that_is_no_order_is_refused(
    gateway: Gateway, body: dict[str, Any], error: tuple[int, Any]
) -> None:
    assert code(await gateway.post(CHECK, body)) == error


async def test_a_check_says_why_the_server_can_never_have_it(gateway: Gateway) -> None:
    checked = (await gateway.post(CHECK, {"proposer": "nope"})).json()
    assert (checked["to"]["status"], checked["to"]["code"]) == (404, "proposer_not_found")
    assert "nope" in checked["to"]["message"]


async def test_a_state_is_set_once_and_shown(gateway: Gateway) -> None:
    told = (await put(gateway, mode="immediate", reason="nightly")).json()
    assert (told["active"], told["switch"]["previous"]) == (NGRAM, DRAFT)
    assert (told["switch"]["generation"], told["switch"]["fleet_generation"]) == (1, 4)
    desired = STATE | {"revision": 0}
    assert told["fleet"] == {
        **{"generation": 4, "switching": False},
        **{"desired": desired, "lag": None},
    }
    assert (await put(gateway)).json() == told
    shown = (await gateway.client.get("/v1/spec_method")).json()
    assert shown["fleet"] == told["fleet"]
    (record,) = shown["switches"]
    assert (record["fleet_generation"], record["reason"]) == (4, "nightly")


async def test_a_server_that_lags_says_why_and_what_it_should_have(gateway: Gateway) -> None:
    told = (await put(gateway, spec_method="elsewhere")).json()
    assert (told["active"], told["switch"]) == (DRAFT, None)
    assert told["fleet"]["lag"]["code"] == "proposer_not_found"
    assert told["fleet"]["desired"]["spec_method"] == "elsewhere"
    # A later state replaces it.
    told = (await put(gateway, generation=5)).json()
    assert (told["active"], told["fleet"]["lag"]) == (NGRAM, None)


async def test_an_older_state_is_answered_with_the_later_one(gateway: Gateway) -> None:
    await put(gateway)
    told = (await put(gateway, generation=3, spec_method="suffix")).json()
    assert (told["active"], told["switch"]) == (NGRAM, None)
    assert told["fleet"]["desired"]["generation"] == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"generation": 0},
        {"generation": 2**53},
        {"generation": "4"},
        {"num_speculative_tokens": -1},
        {"policies": {"load": 1}},
        {"lease_s": 30},
        {"on_timeout": "move"},
    ],
)
async def test_what_is_no_state_is_refused(gateway: Gateway, changed: dict[str, Any]) -> None:
    assert (await put(gateway, **changed)).status_code == 400
    assert gateway.runtime.fleet.desired is None


async def test_a_caller_that_leaves_does_not_end_the_switch(start: StartGateway) -> None:
    # A step takes longer than the test.
    gateway = await start(engine_args={"fake_step_ms": 3_600_000})
    running = asyncio.create_task(gateway.complete(max_tokens=1000))
    await eventually(lambda: gateway.engine.num_running == 1)
    setting = asyncio.create_task(put(gateway, mode="drain", timeout_s=3600))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    setting.cancel()
    await asyncio.gather(setting, return_exceptions=True)
    assert gateway.runtime.switcher.drain is not None
    # A later state does.
    told = (await put(gateway, generation=5, mode="immediate")).json()
    assert told["fleet"]["generation"] == 5
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_server_that_stops_answers_a_drain(start: StartGateway) -> None:
    # A step takes longer than the test.
    gateway = await start(engine_args={"fake_step_ms": 3_600_000})
    running = asyncio.create_task(gateway.complete(max_tokens=1000))
    await eventually(lambda: gateway.engine.num_running == 1)
    setting = asyncio.create_task(put(gateway, mode="drain", timeout_s=3600))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    gateway.runtime.switcher.stop()
    told = (await setting).json()
    assert told["fleet"]["lag"]["code"] == "stopping"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
