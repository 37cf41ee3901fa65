"""A request that is in flight for as long as a test wants."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.server.gateway import Gateway, eventually


async def begun(gateway: Gateway) -> "tuple[asyncio.Task[Any], Callable[[], None]]":
    """A request that is in flight, and a function that lets it end."""
    hold = asyncio.Event()
    generate = gateway.engine.generate

    async def held(request: Any) -> Any:
        await hold.wait()
        async for delta in generate(request):
            yield delta

    gateway.engine.generate = held  # type: ignore[method-assign]
    request = asyncio.create_task(gateway.complete(max_tokens=2))
    await eventually(lambda: len(gateway.runtime.switcher.in_flight) == 1)
    gateway.engine.generate = generate  # type: ignore[method-assign]
    return request, hold.set
