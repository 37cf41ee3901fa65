"""The trace of a caller, and the trace of a request without a valid one."""

import pytest
import structlog
from structlog.testing import capture_logs

from tests.server.gateway import Gateway
from tests.server.telemetry.otlp_receiver import OtlpReceiver
from tests.server.telemetry.traced_requests import CHATS, PARENT, chat


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
