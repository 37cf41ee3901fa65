"""The spans that a collector gets: of every kind of request, and with every kind of end."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import structlog
from opentelemetry.semconv._incubating.attributes import (
    client_attributes,
    error_attributes,
    gen_ai_attributes,
    http_attributes,
    url_attributes,
)
from structlog.testing import capture_logs

from engine_adapter.counts import ProposerCounts
from engine_adapter.types import SamplingOptions
from server.telemetry.generation import Generation, Selected, Timings
from server.telemetry.spans import generation_attributes
from server.telemetry.tracing import FLUSH_THREAD, ExportReports
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events, eventually
from tests.server.telemetry.otlp_receiver import OtlpReceiver, receiving

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ERROR, UNSET = 2, 0
CHATS = "/v1/chat/completions"


def chat(content: str = "hi") -> dict[str, Any]:
    """The body of a chat with an answer of one token."""
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


def _more_than(items: list[str], count: int) -> bool:
    return len(items) > count


def _no_flush_runs() -> bool:
    """Whether no exporter of a closed server still logs."""
    return not any(thread.name == FLUSH_THREAD for thread in threading.enumerate())


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OtlpReceiver]:
    """A collector; the SDK waits 20 ms for more spans."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def traced(receiver: OtlpReceiver, start: StartGateway) -> Gateway:
    """A gateway that sends its traces there."""
    return await start(otlp_traces_endpoint=receiver.url)


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

    async def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")

    async def slow(*args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(60)

    assert (await gateway.chat("x" * 100)).status_code == 413
    switch = {"speculative_model": "ngram"}
    monkeypatch.setattr(gateway.runtime.switcher, "switch", broken)
    assert (await gateway.post("/v1/switch_spec_method", switch)).status_code == 500
    monkeypatch.setattr(gateway.runtime.switcher, "switch", slow)
    exchange = gateway.exchange("/v1/switch_spec_method", switch)
    task = exchange.begin()
    await asyncio.sleep(0.05)
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
async def test_a_failing_sequence_is_an_error_whatever_the_status_says(
    receiver: OtlpReceiver, start: StartGateway, stream: bool
) -> None:
    gateway = await start(
        otlp_traces_endpoint=receiver.url,
        engine_args={"fake_fail_prompt": "fail", "fake_trouble_after_tokens": 3},
    )
    response = await gateway.chat("please fail", stream=stream)
    assert response.status_code == (200 if stream else 500)
    span = await receiver.one()
    assert span.attributes["http.response.status_code"] == response.status_code
    assert (span.attributes["error.type"], span.status) == ("internal_error", ERROR)
    assert span.attributes["gen_ai.usage.output_tokens"] >= 3
    assert span.attributes["gen_ai.response.finish_reasons"] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_no_error_of_the_server(
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


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("traceparent", "nonsense")],
        [("traceparent", "")],
        [("traceparent", PARENT.upper())],
        [("traceparent", f"ff{PARENT[2:]}")],
        [("traceparent", f"{PARENT}-more")],
        [("traceparent", f"00-{'0' * 32}-b7ad6b7169203331-01")],
        [("traceparent", f"00-{PARENT[3:35]}-{'0' * 16}-01")],
        [("traceparent", "0" * 10_000)],
        [("traceparent", PARENT), ("traceparent", PARENT)],
        [("tracestate", "vendor=a")],
        [("traceparent", "é\x01")],
    ],
)
async def test_without_a_valid_parent_a_trace_begins(
    traced: Gateway, receiver: OtlpReceiver, headers: list[tuple[str, str]]
) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    with capture_logs() as logs:
        response = await traced.client.post(
            "/v1/completions", content=body, headers=[(b"content-type", b"application/json"), *raw]
        )
        span = await receiver.one()
    assert response.status_code == 200
    assert span.parent_id == ""
    assert span.trace_id != PARENT[3:35]
    assert span.trace_state == ""
    assert [line["event"] for line in logs] == ["request"]


@pytest.mark.parametrize("state", ["no state", "a" * 600, "=", "a=1,a=2", "é=1"])
async def test_a_tracestate_that_is_not_valid_is_left_out(
    traced: Gateway, receiver: OtlpReceiver, state: str
) -> None:
    headers = {b"traceparent": PARENT.encode(), b"tracestate": state.encode("latin-1")}
    with capture_logs() as logs:
        await traced.client.post(
            "/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers
        )
        span = await receiver.one()
    assert (span.trace_id, span.trace_state) == (PARENT[3:35], "")
    assert [line["event"] for line in logs] == ["request"]


async def test_a_caller_that_does_not_sample_is_followed(
    traced: Gateway, receiver: OtlpReceiver
) -> None:
    headers = {"traceparent": f"{PARENT[:-2]}00"}
    response = await traced.post(CHATS, chat(), headers=headers)
    assert response.headers["x-trace-id"] == PARENT[3:35]
    await traced.chat(max_tokens=1)
    assert (await receiver.one()).parent_id == ""


async def test_the_log_has_the_trace_id(traced: Gateway, receiver: OtlpReceiver) -> None:
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        response = await traced.post(CHATS, chat(), headers={"x-request-id": "r-2"})
        await traced.client.get("/v1/models")
    (posted, models) = (line for line in logs if line["event"] == "request")
    assert posted["trace_id"] == response.headers["x-trace-id"]
    assert posted["request_id"] == "r-2"
    assert "trace_id" not in models


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


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_TRACES_SAMPLER", "always_off"), ("OTEL_SDK_DISABLED", "true")]
)
async def test_the_sdks_variables_are_followed(
    receiver: OtlpReceiver,
    start: StartGateway,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(name, value)
    gateway = await start(otlp_traces_endpoint=receiver.url)
    assert (await gateway.chat(max_tokens=1)).status_code == 200
    assert gateway.state.tracing is not None
    await gateway.state.tracing.close()
    assert receiver.spans == []


async def test_the_service_name_can_be_set(
    receiver: OtlpReceiver, start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "specgate-blue")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    # The setting overrides this one.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    gateway = await start(otlp_traces_endpoint=receiver.url)
    await gateway.chat(max_tokens=1)
    resource = (await receiver.one()).resource
    assert resource["service.name"] == "specgate-blue"
    assert resource["deployment.environment.name"] == "test"


async def test_an_endpoint_that_is_gone_costs_one_line(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    gateway = await start(otlp_traces_endpoint="http://127.0.0.1:9/v1/traces")
    with capture_logs() as logs:
        for _ in range(20):
            assert (await gateway.chat(max_tokens=1)).status_code == 200
        await eventually(lambda: "traces_not_sent" in [line["event"] for line in logs], 10)
        assert gateway.state.tracing is not None
        await gateway.state.tracing.close(0.1)
        await eventually(_no_flush_runs, 10)
    (line,) = (line for line in logs if line["event"] != "request")
    assert (line["event"], line["log_level"]) == ("traces_not_sent", "warning")
    assert "refused" in line["reason"]


async def test_a_collector_that_answers_an_error_costs_one_line(
    traced: Gateway, receiver: OtlpReceiver
) -> None:
    receiver.status = 400
    with capture_logs() as logs:
        for count in range(3):
            assert (await traced.chat(max_tokens=1)).status_code == 200
            await eventually(partial(_more_than, receiver.paths, count), 10)
        await eventually(lambda: "traces_not_sent" in [line["event"] for line in logs], 10)
    assert [line["event"] for line in logs if line["event"] != "request"] == ["traces_not_sent"]
    assert set(receiver.paths) == {"/v1/traces"}


async def test_a_collector_that_hangs_does_not_hold_up_the_stop(
    receiver: OtlpReceiver, start: StartGateway
) -> None:
    receiver.hangs = True
    gateway = await start(otlp_traces_endpoint=receiver.url)
    await gateway.chat(max_tokens=1)
    await eventually(lambda: len(receiver.paths) > 0, 10)
    assert (await gateway.chat(max_tokens=1)).status_code == 200
    assert gateway.state.tracing is not None
    with capture_logs() as logs:
        async with asyncio.timeout(5):
            await gateway.state.tracing.close(0.1)
    (line,) = logs
    assert line["reason"] == "the last spans could not be sent within 0.1 s"


async def test_a_stop_sends_the_last_spans(
    receiver: OtlpReceiver, start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    gateway = await start(otlp_traces_endpoint=receiver.url)
    for _ in range(3):
        await gateway.chat(max_tokens=1)
    assert receiver.spans == []
    assert gateway.state.tracing is not None
    await gateway.state.tracing.close()
    assert len(receiver.spans) == 3


def test_reports_are_one_line_in_an_interval() -> None:
    now = [1000.0]
    reports = ExportReports(clock=lambda: now[0])
    with capture_logs() as logs:
        for second in (0, 1, 299, 300, 301):
            now[0] = 1000.0 + second
            reports.report(f"at {second}")
    assert [line["reason"] for line in logs] == ["at 0", "at 300"]


async def test_without_an_endpoint_nothing_is_traced(gateway: Gateway) -> None:
    assert gateway.state.tracing is None
    response = await gateway.post(CHATS, chat(), headers={"traceparent": PARENT})
    assert "x-trace-id" not in response.headers


def test_the_names_are_those_of_the_conventions() -> None:
    modules = (
        client_attributes,
        error_attributes,
        gen_ai_attributes,
        http_attributes,
        url_attributes,
    )
    known = {value for module in modules for value in vars(module).values() if str(value) == value}
    everything = Generation(
        id="chatcmpl-1",
        operation="chat",
        model="m",
        api_key="team-a",
        streams=True,
        num_choices=1,
        sampling=SamplingOptions(
            top_k=3, max_tokens=9, seed=1, frequency_penalty=1, presence_penalty=1
        ),
        timings=Timings(0.1, 0.2, 0.3, 0.4),
        selected=Selected("goodput", 4, "rule", "r"),
        drafts={"ngram": ProposerCounts(1, 4, 2, (1, 1), 3)},
    )
    names = generation_attributes(everything)
    assert len([name for name in names if name.startswith("gen_ai.")]) == 18
    assert [n for n in names if not n.startswith("specgate.") and n not in known] == []
    own = {
        "client.address",
        "error.type",
        "http.request.method",
        "http.response.status_code",
        "http.route",
        "url.path",
        "url.scheme",
    }
    assert own - known == set()
