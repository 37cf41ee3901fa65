"""Started fake engines."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.engine_adapter.fake.harness import FakeHarness, build

StartEngine = Callable[..., Awaitable[FakeHarness]]


@pytest.fixture
async def start() -> AsyncIterator[StartEngine]:
    """Starts engines with the given arguments; stops them at the end."""
    started: list[FakeHarness] = []

    async def _start(**arguments: Any) -> FakeHarness:
        harness = build(**{"fake_step_ms": 0, **arguments})
        await harness.engine.start(lambda line: None)
        started.append(harness)
        return harness

    yield _start
    for harness in started:
        await harness.engine.stop()
