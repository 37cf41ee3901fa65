"""Started fleets of fake engines."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from engine_adapter.data_parallel import rank
from tests.engine_adapter.data_parallel.fleet import Fleet, build

StartFleet = Callable[..., Awaitable[Fleet]]


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StartFleet]:
    """Starts fleets with the given arguments; stops them at the end."""
    monkeypatch.setattr(rank, "RETRY_S", 0.01)
    started: list[Fleet] = []

    async def _start(size: int = 2, **arguments: Any) -> Fleet:
        fleet = build(size, **arguments)
        await fleet.engine.start(lambda line: None)
        started.append(fleet)
        return fleet

    yield _start
    for fleet in started:
        await fleet.engine.stop()
