"""Responses whose engine dies, whose client leaves, or whose server stops."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from engine_adapter.seam.types import Delta, GenerationRequest
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually
from tests.server.response_events import checked_events, kinds

PATH = "/v1/responses"
LONG: dict[str, Any] = {"input": "Say hello.", "max_output_tokens": 400, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
async def test_death_before_the_first_token_is_a_503(start: StartGateway, stream: bool) -> None:
    gateway = await start(engine_args={"fake_die_at_call": "generate"})
    response = await gateway.post(PATH, {**LONG, "stream": stream})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert len(gateway.runtime.responses) == 0


async def test_death_while_generating_is_a_503(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_die_after_steps": 3})
    response = await gateway.post(PATH, LONG)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")


async def test_death_in_mid_stream_is_a_failed_response(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_die_after_steps": 4})
    response = await gateway.post(PATH, {**LONG, "stream": True})
    assert response.status_code == 200
    events = checked_events(response.text)
    assert kinds(events)[-1] == "failed"
    assert not {"completed", "incomplete", "output_item.done"} & set(kinds(events))
    failed = events[-1]["response"]
    assert (failed["status"], failed["usage"], failed["incomplete_details"]) == (
        "failed",
        None,
        None,
    )
    assert (failed["error"]["code"], failed["error"]["type"]) == ("server_error", "engine_dead")
    (item,) = failed["output"]
    deltas = "".join(e["delta"] for e in events if e["type"].endswith("text.delta"))
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", deltas)


async def test_a_failed_response_is_stored_as_failed_and_not_continued(
    start: StartGateway,
) -> None:
    gateway = await start(
        engine_args={"fake_fail_prompt": "broken", "fake_trouble_after_tokens": 3}
    )
    response = await gateway.post(PATH, {**LONG, "input": "broken", "stream": True})
    failed = checked_events(response.text)[-1]["response"]
    assert failed["status"] == "failed"
    assert (await gateway.client.get(f"{PATH}/{failed['id']}")).json() == failed
    body = {"input": "Go on.", "previous_response_id": failed["id"]}
    error = (await gateway.post(PATH, body)).json()["error"]
    assert (error["param"], "failed" in error["message"]) == ("previous_response_id", True)


async def test_sequence_that_ends_without_a_reason_is_an_error(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def generate(request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="half a sen", token_ids=(5, 6))

    monkeypatch.setattr(gateway.engine, "generate", generate)
    assert (await gateway.post(PATH, LONG)).status_code == 500
    events = checked_events((await gateway.post(PATH, {**LONG, "stream": True})).text)
    assert kinds(events)[-2:] == ["output_text.delta", "failed"]
    assert events[-1]["response"]["error"]["type"] == "internal_error"


async def test_failure_before_the_response_has_begun_is_an_error_event(
    start: StartGateway,
) -> None:
    gateway = await start(keepalive_s=0.02, engine_args={"fake_prefill_token_ms": 1000})
    exchange = gateway.exchange(PATH, {**LONG, "stream": True})
    task = exchange.begin()
    await eventually(lambda: ": keep-alive" in exchange.text)
    gateway.engine.die()
    await task
    (event,) = checked_events(exchange.text)
    assert (event["type"], event["code"]) == ("error", "engine_dead")
    assert event["message"] == "The engine died: killed."


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_aborts_and_stores_nothing(start: StartGateway, stream: bool) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    exchange = gateway.exchange(PATH, {**LONG, "stream": stream})
    task = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    if stream:
        await eventually(lambda: len(exchange.sent) > 3)
    exchange.leave()
    await asyncio.wait_for(task, 60)
    assert gateway.engine.num_running == gateway.engine.num_waiting == 0
    assert len(gateway.runtime.switcher.in_flight) == 0
    assert len(gateway.runtime.responses) == 0


async def test_a_stop_in_mid_stream_is_a_failed_response(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    exchange = gateway.exchange(PATH, {**LONG, "stream": True})
    task = exchange.begin()
    await eventually(lambda: len(exchange.sent) > 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    last = checked_events(exchange.text)[-1]
    assert (last["type"], last["response"]["error"]["type"]) == ("response.failed", "stopping")


async def test_a_response_can_be_read_while_the_engine_is_dead(gateway: Gateway) -> None:
    made = (await gateway.post(PATH, {**LONG, "max_output_tokens": 2})).json()
    gateway.engine.die(retry_after_s=5)
    assert (await gateway.client.get(f"{PATH}/{made['id']}")).json() == made
    assert (await gateway.post(PATH, LONG)).status_code == 503


async def test_a_response_waits_for_a_drain(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 2, "fake_acceptance": 0})
    first = gateway.exchange(PATH, {**LONG, "max_output_tokens": 100})
    running = first.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    switch = {"speculative_model": "ngram", "mode": "drain"}
    draining = asyncio.create_task(gateway.post("/v1/switch_spec_method", switch))
    await eventually(lambda: not gateway.runtime.admission.slots.is_open)
    second = await gateway.post(PATH, {**LONG, "max_output_tokens": 2})
    assert second.headers["x-specgate-spec-method"] == "ngram"
    assert (await draining).status_code == 200
    await running
    assert first.status == 200
