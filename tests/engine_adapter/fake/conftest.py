"""Started fake engines."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.engine_adapter.fake.bench import Bench, build

StartBench = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def start() -> AsyncIterator[StartBench]:
    """Starts engines with the given arguments; stops them at the end."""
    started: list[Bench] = []

    async def _start(**arguments: Any) -> Bench:
        bench = build(**{"fake_step_ms": 0, **arguments})
        await bench.engine.start(lambda line: None)
        started.append(bench)
        return bench

    yield _start
    for bench in started:
        await bench.engine.stop()
