"""Gateways on the fake engine, started and stopped."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, cast

import httpx
import pytest
import structlog

from engine_adapter.fake.engine import FakeEngine
from engine_adapter.seam.types import GenerationRequest
from tests.server.contract.contract import check_response
from tests.server.gateway import BASE_URL, Gateway, build, record_requests
from tests.server.threaded import ADMIN_KEY, ThreadedServer

structlog.configure(
    # Tracebacks as plain text: structlog's own default takes a second for each.
    processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()]
)

StartServer = Callable[..., ThreadedServer]

StartGateway = Callable[..., Awaitable[Gateway]]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Without the garbage collector: only what nothing refers to is freed."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
async def start() -> AsyncIterator[StartGateway]:
    """Starts gateways with the given settings; `wait=False` does not wait for the engine.

    Every answer that the client of a gateway gets must be one of the OpenAPI document's.
    """
    async with AsyncExitStack() as stack:

        async def _start(*, wait: bool = True, **settings: Any) -> Gateway:
            app, engine, registry = build(**settings)
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            client = httpx.AsyncClient(
                transport=transport,
                base_url=BASE_URL,
                event_hooks={"response": [check_response]},
            )
            await stack.enter_async_context(client)
            gateway = Gateway(app, cast(FakeEngine, engine), registry, client)
            if wait:
                await gateway.state.start_ended.wait()
                assert gateway.state.startup_error is None
            return gateway

        yield _start


@pytest.fixture
async def gateway(start: StartGateway) -> Gateway:
    """The demo's settings on a fake engine that takes no time."""
    return await start()


@pytest.fixture
def seen(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """The requests of an engine whose response is always `{}`."""
    return record_requests(gateway, monkeypatch)


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts servers on real ports that want an admin key; all are stopped afterwards."""
    servers: list[ThreadedServer] = []

    def start(**settings: Any) -> ThreadedServer:
        given = {"admin_key": (ADMIN_KEY,), "spec_method": "none", **settings}
        server = ThreadedServer(**given).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()
