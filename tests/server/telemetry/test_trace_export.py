"""How spans are sent: the SDK's variables, collectors that fail, the last spans."""

import asyncio
import threading
from functools import partial

import pytest
from structlog.testing import capture_logs

from server.telemetry.tracing import FLUSH_THREAD, ExportReports
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually
from tests.server.telemetry.otlp_receiver import OtlpReceiver


def _more_than(items: list[str], count: int) -> bool:
    return len(items) > count


def _no_flush_runs() -> bool:
    """Whether no exporter of a closed server still logs."""
    return not any(thread.name == FLUSH_THREAD for thread in threading.enumerate())


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
        await eventually(lambda: "traces_not_sent" in [line["event"] for line in logs])
        assert gateway.state.tracing is not None
        await gateway.state.tracing.close(0.1)
        await eventually(_no_flush_runs)
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
            await eventually(partial(_more_than, receiver.paths, count))
        await eventually(lambda: "traces_not_sent" in [line["event"] for line in logs])
    assert [line["event"] for line in logs if line["event"] != "request"] == ["traces_not_sent"]
    assert set(receiver.paths) == {"/v1/traces"}


async def test_a_collector_that_hangs_does_not_hold_up_the_stop(
    receiver: OtlpReceiver, start: StartGateway
) -> None:
    receiver.hangs = True
    gateway = await start(otlp_traces_endpoint=receiver.url)
    await gateway.chat(max_tokens=1)
    await eventually(lambda: len(receiver.paths) > 0)
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
