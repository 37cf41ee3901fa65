"""Engines that die, hang or are missing: the status, and the end of a stream."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from engine_adapter.fake.engine import FakeEngine
from engine_adapter.seam.types import Delta, GenerationRequest
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}


def _events(text: str) -> list[str]:
    return [part.removeprefix("data: ") for part in text.split("\n\n") if part]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_engine_is_a_503_with_retry_after(gateway: Gateway, stream: bool) -> None:
    gateway.engine.die(retry_after_s=7.5)
    response = await gateway.complete(stream=stream)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "engine_dead")
    assert (error["type"], error["message"]) == ("server_error", "The engine died: killed.")
    assert response.headers["retry-after"] == "8"


async def test_a_503_without_recovery_has_no_retry_after(gateway: Gateway) -> None:
    gateway.engine.die()
    response = await gateway.complete()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert "retry-after" not in response.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_death_before_the_first_token_is_a_503(start: StartGateway, stream: bool) -> None:
    gateway = await start(engine_args={"fake_die_at_call": "generate"})
    response = await gateway.chat(stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")


async def test_death_while_generating_is_a_503(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_die_after_steps": 3})
    response = await gateway.complete(**LONG)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_death_in_mid_stream_is_an_error_event(
    start: StartGateway, path: str, n: int
) -> None:
    gateway = await start(engine_args={"fake_die_after_steps": 4})
    messages = [{"role": "user", "content": "hi"}]
    prompt: dict[str, Any] = {"messages": messages} if "chat" in path else {"prompt": "a"}
    options = {"include_usage": True}
    body = {**prompt, **LONG, "n": n, "stream": True, "stream_options": options}
    response = await gateway.post(path, body)
    assert response.status_code == 200
    *data, last, done = _events(response.text)
    assert done == "[DONE]"
    assert json.loads(last)["error"]["code"] == "engine_dead"
    choices = [choice for line in data for choice in json.loads(line)["choices"]]
    assert choices
    assert all(choice["finish_reason"] is None for choice in choices)


async def test_sequence_that_ends_without_a_reason_is_an_error(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def generate(request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="half a sen", token_ids=(5, 6))

    monkeypatch.setattr(gateway.engine, "generate", generate)
    assert (await gateway.complete()).status_code == 500
    *data, last, done = _events((await gateway.complete(stream=True)).text)
    assert [json.loads(line)["choices"][0]["finish_reason"] for line in data] == [None]
    assert (json.loads(last)["error"]["code"], done) == ("internal_error", "[DONE]")


async def test_one_choice_that_fails_ends_the_others(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 1, "fake_fail_prompt": "broken"})
    response = await gateway.complete(["fine", "broken"], **LONG)
    assert response.status_code >= 500
    assert "finish_reason" not in response.text
    await eventually(lambda: gateway.engine.num_running == 0)


async def test_a_failed_request_does_not_affect_others(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 1, "fake_fail_prompt": "broken"})
    fine, broken = await asyncio.gather(
        gateway.complete("fine", max_tokens=20), gateway.complete("broken", **LONG)
    )
    assert (fine.status_code, broken.status_code >= 500) == (200, True)


async def test_silent_engine_gets_a_status_and_comments(start: StartGateway) -> None:
    gateway = await start(keepalive_s=0.02, engine_args={"fake_hang_prompt": "hang"})
    exchange = gateway.exchange("/v1/completions", {"prompt": "hang", **LONG, "stream": True})
    task = exchange.begin()
    await eventually(lambda: exchange.text.count(": keep-alive\n\n") >= 3)
    assert exchange.status == 200
    exchange.leave()
    await task
    assert gateway.engine.num_running == 0


async def test_failure_after_keep_alive_is_an_error_event(start: StartGateway) -> None:
    gateway = await start(keepalive_s=0.02, engine_args={"fake_hang_after_steps": 1})
    exchange = gateway.exchange("/v1/completions", {"prompt": "a", **LONG, "stream": True})
    task = exchange.begin()
    await eventually(lambda: ": keep-alive" in exchange.text)
    gateway.engine.die()
    await task
    *_, last, done = _events(exchange.text)
    assert (json.loads(last)["error"]["code"], done) == ("engine_dead", "[DONE]")


async def test_inference_waits_for_the_engine_with_503(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, may_start = FakeEngine.start, asyncio.Event()

    async def held(engine: FakeEngine, on_progress: Callable[[str], None]) -> None:
        await may_start.wait()
        await whole(engine, on_progress)

    monkeypatch.setattr(FakeEngine, "start", held)
    gateway = await start(wait=False)
    paths = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize")
    for path in paths:
        # Even for an invalid body: it cannot be checked yet.
        response = await gateway.post(path, {})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "engine_not_ready")
        assert int(response.headers["retry-after"]) > 0
    assert (await gateway.client.get("/v1/models")).status_code == 503
    version = (await gateway.client.get("/version")).json()
    assert (version["engine"], version["engine_version"]) == ("fake", None)
    may_start.set()
    await gateway.state.start_ended.wait()
    assert (await gateway.complete(max_tokens=1)).status_code == 200
