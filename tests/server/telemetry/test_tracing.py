"""The spans that a collector gets: of every kind of request, and with every kind of end."""

import asyncio
import time
from typing import Any

import pytest

from server.openai.request import WHOLE_INTERVAL
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events, eventually
from tests.server.telemetry.otlp_receiver import OtlpReceiver
from tests.server.telemetry.traced_requests import CHATS, ERROR, PARENT, UNSET, chat


async def test_a_chat_is_one_span_of_its_callers_trace(
    traced: Gateway, receiver: OtlpReceiver
) -> None:
    before = time.time_ns()
    headers = {"traceparent": PARENT, "tracestate": "vendor=a", "x-request-id": "r-1"}
    asked = {"max_tokens": 24, "temperature": 0.5, "top_p": 0.9}
    response = await traced.post(CHATS, {**chat("What is a monad?"), **asked}, headers=headers)
    span = await receiver.one()
    assert (span.trace_id, span.parent_id) == (PARENT[3:35], PARENT[36:52])
    assert span.trace_state == "vendor=a"
    assert response.headers["x-trace-id"] == span.trace_id
    assert (span.name, span.kind, span.status) == ("chat specgate-demo", 2, UNSET)
    assert before <= span.begin_ns < span.end_ns <= time.time_ns()
    body = response.json()
    usage, figures = body["usage"], body["metrics"]["speculative_decoding"]
    expected = {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "specgate",
        "gen_ai.request.model": "specgate-demo",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 24,
        "gen_ai.request.stream": False,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.id": body["id"],
        "gen_ai.response.model": "specgate-demo",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 24,
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "specgate.request_id": "r-1",
        "specgate.spec_method": "draft",
        "specgate.selected_by": "active",
        "specgate.num_speculative_tokens": 4,
        "specgate.proposers": ["draft"],
        "specgate.draft_tokens": figures["num_draft_tokens"],
        "specgate.accepted_tokens": figures["num_accepted_draft_tokens"],
        "specgate.acceptance_rate": figures["draft_acceptance_rate"],
    }
    assert {name: span.attributes.get(name) for name in expected} == expected
    assert span.attributes["specgate.draft_tokens"] > 0
    assert "error.type" not in span.attributes
    assert span.resource["service.name"] == "specgate"


async def test_the_events_of_a_stream_are_in_order(traced: Gateway, receiver: OtlpReceiver) -> None:
    response = await traced.chat(max_tokens=8, stream=True)
    last = events(response)[-1]
    span = await receiver.one()
    assert list(span.events) == ["specgate.admitted", "specgate.first_token"]
    admitted, first = span.events.values()
    assert span.begin_ns < admitted < first < span.end_ns
    found = span.attributes
    assert found["gen_ai.request.stream"] is True
    assert found["gen_ai.usage.output_tokens"] == 8
    figures = last["metrics"]["speculative_decoding"]
    assert found["specgate.draft_tokens"] == figures["num_draft_tokens"]
    first_s = found["specgate.time_to_first_token_s"]
    assert 0 < found["specgate.prepare_s"] + found["specgate.queue_s"] < first_s
    assert first_s == pytest.approx((first - span.begin_ns) / 1e9, abs=1e-5)


async def test_all_choices_of_all_prompts_are_one_span(
    traced: Gateway, receiver: OtlpReceiver
) -> None:
    response = await traced.complete(["def f(x):", "a"], n=2, max_tokens=5, temperature=1)
    span = await receiver.one()
    assert span.name == "text_completion specgate-demo"
    assert span.attributes["gen_ai.request.choice.count"] == 4
    reasons = [choice["finish_reason"] for choice in response.json()["choices"]]
    assert span.attributes["gen_ai.response.finish_reasons"] == reasons
    usage = response.json()["usage"]
    assert span.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert span.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_of_the_responses_api_is_a_chat(
    traced: Gateway, receiver: OtlpReceiver, stream: bool
) -> None:
    body = {"input": "hi", "max_output_tokens": 16, "stream": stream}
    assert (await traced.post("/v1/responses", body)).status_code == 200
    span = await receiver.one()
    assert span.name == "chat specgate-demo"
    assert span.attributes["http.route"] == "/v1/responses"
    assert span.attributes["gen_ai.response.id"].startswith("resp_")
    assert span.attributes["gen_ai.usage.output_tokens"] > 0


async def test_a_policy_tells_which_proposers_drafted(
    receiver: OtlpReceiver, start: StartGateway
) -> None:
    gateway = await start(otlp_traces_endpoint=receiver.url, spec_method="per_request")
    await gateway.chat("def f(x): return x", max_tokens=64)
    found = (await receiver.one()).attributes
    assert (found["specgate.spec_method"], found["specgate.policy"]) == ("per_request",) * 2
    assert found["specgate.proposers"]
    by_proposer = found["specgate.proposers.draft_tokens"]
    assert len(by_proposer) == len(found["specgate.proposers"])
    assert sum(by_proposer) == found["specgate.draft_tokens"]


async def test_no_content_and_no_key_is_sent(receiver: OtlpReceiver, start: StartGateway) -> None:
    gateway = await start(
        otlp_traces_endpoint=receiver.url,
        named_api_key={"team-a": "key-of-a"},
        engine_args={"fake_answers": {"secret question": "secret answer of it"}},
    )
    body = {
        **chat("a secret question"),
        "max_tokens": 40,
        "stop": ["secret stop"],
        "user": "secret user",
    }
    response = await gateway.post(CHATS, body, headers={"authorization": "Bearer key-of-a"})
    assert "secret answer" in response.text
    span = await receiver.one()
    assert span.attributes["specgate.api_key"] == "team-a"
    sent = b"".join(receiver.bodies)
    for private in (b"secret", b"question", b"answer", b"key-of-a"):
        assert private not in sent


async def test_a_refused_request_keeps_the_name_of_its_route(
    traced: Gateway, receiver: OtlpReceiver
) -> None:
    assert (await traced.chat(temperature=9)).status_code == 400
    assert (await traced.chat(model="other")).status_code == 404
    refused, unknown = await receiver.wait(2)
    assert refused.name == unknown.name == "POST /v1/chat/completions"
    assert refused.attributes["http.response.status_code"] == 400
    assert (unknown.attributes["error.type"], unknown.status) == ("model_not_found", UNSET)


async def test_a_refusal_at_admission_has_its_code(traced: Gateway, receiver: OtlpReceiver) -> None:
    response = await traced.chat(spec_decode={"proposer": "nope"})
    span = await receiver.one()
    assert span.attributes["error.type"] == response.json()["error"]["code"]
    assert span.attributes["gen_ai.request.model"] == "specgate-demo"
    assert "gen_ai.response.id" not in span.attributes


async def test_a_refusal_outside_of_the_routes_has_its_code(
    receiver: OtlpReceiver, start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(otlp_traces_endpoint=receiver.url, max_body_bytes=100)
    switching = asyncio.Event()

    async def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")

    async def slow(*args: Any, **kwargs: Any) -> None:
        switching.set()
        await asyncio.sleep(600)

    assert (await gateway.chat("x" * 100)).status_code == 413
    switch = {"speculative_model": "ngram"}
    monkeypatch.setattr(gateway.runtime.switcher, "switch", broken)
    assert (await gateway.post("/v1/switch_spec_method", switch)).status_code == 500
    monkeypatch.setattr(gateway.runtime.switcher, "switch", slow)
    exchange = gateway.exchange("/v1/switch_spec_method", switch)
    task = exchange.begin()
    await asyncio.wait_for(switching.wait(), 60)
    task.cancel()
    await task
    assert exchange.status == 503
    spans = await receiver.wait(3)
    found = [(span.attributes["error.type"], span.status) for span in spans]
    expected = [("request_too_large", UNSET), ("internal_error", ERROR), ("stopping", ERROR)]
    assert found == expected


async def test_a_dead_engine_is_an_error(traced: Gateway, receiver: OtlpReceiver) -> None:
    traced.engine.die()
    assert (await traced.chat()).status_code == 503
    span = await receiver.one()
    assert (span.attributes["error.type"], span.status) == ("engine_dead", ERROR)
    assert span.attributes["http.response.status_code"] == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failing_sequence_is_an_error_with_any_status(
    receiver: OtlpReceiver, start: StartGateway, stream: bool
) -> None:
    gateway = await start(
        otlp_traces_endpoint=receiver.url,
        engine_args={"fake_fail_prompt": "fail", "fake_trouble_after_tokens": 20},
    )
    response = await gateway.chat("please fail", stream=stream)
    assert response.status_code == (200 if stream else 500)
    span = await receiver.one()
    assert span.attributes["http.response.status_code"] == response.status_code
    assert (span.attributes["error.type"], span.status) == ("internal_error", ERROR)
    assert span.attributes["gen_ai.usage.output_tokens"] > 20 - (1 if stream else WHOLE_INTERVAL)
    assert span.attributes["gen_ai.response.finish_reasons"] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_not_an_error_of_the_server(
    receiver: OtlpReceiver, start: StartGateway, stream: bool
) -> None:
    gateway = await start(otlp_traces_endpoint=receiver.url, engine_args={"fake_step_ms": 2})
    body = {"prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": stream}
    exchange = gateway.exchange("/v1/completions", body)
    task = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    if stream:
        await eventually(lambda: len(exchange.sent) > 5)
    exchange.leave()
    await task
    span = await receiver.one()
    assert (span.attributes["error.type"], span.status) == ("client_disconnected", UNSET)
    assert span.attributes["http.response.status_code"] == (200 if stream else 499)
    assert (span.attributes["gen_ai.usage.output_tokens"] >= 4) or not stream


async def test_a_switch_is_a_span_and_a_look_at_the_state_is_none(
    traced: Gateway, receiver: OtlpReceiver
) -> None:
    for path in ("/v1/spec_method", "/v1/proposers", "/v1/models", "/health", "/metrics"):
        assert (await traced.client.get(path)).status_code == 200
    body = {"speculative_model": "ngram", "mode": "new_requests"}
    headers = {"traceparent": PARENT}
    assert (await traced.post("/v1/switch_spec_method", body, headers=headers)).status_code == 200
    refused = await traced.post("/v1/switch_spec_method", {"speculative_model": "nope"})
    assert refused.status_code == 404
    done, not_done = await receiver.wait(2)
    assert done.name == not_done.name == "POST /v1/switch_spec_method"
    assert (done.parent_id, done.status) == (PARENT[36:52], UNSET)
    expected = {
        "specgate.spec_method": "ngram",
        "specgate.previous_spec_method": "draft",
        "specgate.switch_mode": "new_requests",
        "specgate.switch_generation": 1,
    }
    assert {name: done.attributes.get(name) for name in expected} == expected
    assert not_done.attributes["error.type"] == "proposer_not_found"


async def test_a_request_without_its_key_is_not_sent(
    receiver: OtlpReceiver, start: StartGateway
) -> None:
    gateway = await start(otlp_traces_endpoint=receiver.url, api_key=["k"], admin_key=["a"])
    assert (await gateway.chat()).status_code == 401
    assert (await gateway.post("/v1/switch_spec_method", {})).status_code == 401
    response = await gateway.post(CHATS, chat(), headers={"authorization": "Bearer k"})
    assert response.status_code == 200
    assert (await receiver.one()).attributes["http.response.status_code"] == 200


async def test_without_an_endpoint_nothing_is_traced(gateway: Gateway) -> None:
    assert gateway.state.tracing is None
    response = await gateway.post(CHATS, chat(), headers={"traceparent": PARENT})
    assert "x-trace-id" not in response.headers
