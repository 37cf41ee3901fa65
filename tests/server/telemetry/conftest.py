"""A collector of traces, and a gateway that sends its own there."""

from collections.abc import AsyncIterator

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway
from tests.server.telemetry.otlp_receiver import OtlpReceiver, receiving


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
