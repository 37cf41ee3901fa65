"""Gateways on the fake engine, started and stopped."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any, cast

import httpx
import pytest
import structlog

from engine_adapter.fake import engine as fake_engine
from engine_adapter.fake.engine import FakeEngine
from engine_adapter.fake.vocabulary import load_vocabulary
from engine_adapter.seam.types import GenerationRequest
from server import rendering
from tests.server.contract.contract import check_response
from tests.server.gateway import BASE_URL, Gateway, build, record_requests
from tests.server.threaded import ADMIN_KEY, ThreadedServer

structlog.configure(
    # Tracebacks as plain text: structlog's own default takes a second for each.
    processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()]
)

StartServer = Callable[..., ThreadedServer]

StartGateway = Callable[..., Awaitable[Gateway]]


@pytest.fixture(autouse=True, scope="session")
def tokenizers_are_read_once() -> Iterator[None]:
    """A process starts some thousand gateways, and reading both tokenizers of one takes 30 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_engine, "load_vocabulary", cache(load_vocabulary))
        patch.setattr(rendering, "_load_tokenizer", cache(rendering._load_tokenizer))
        yield


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Without the garbage collector: only what nothing refers to is freed."""
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def running(*, wait: bool = True, **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway with the given settings; `wait=False` does not wait for the engine.

    Every answer that its client gets must be one of the OpenAPI document's.
    """
    app, engine, registry = build(**settings)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    hooks = {"response": [check_response]}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=BASE_URL, event_hooks=hooks) as client,
    ):
        gateway = Gateway(app, cast(FakeEngine, engine), registry, client)
        if wait:
            await gateway.state.start_ended.wait()
            assert gateway.state.startup_error is None
        yield gateway


@pytest.fixture
async def start() -> AsyncIterator[StartGateway]:
    """Starts gateways: see `running`."""
    async with AsyncExitStack() as stack:

        async def _start(**settings: Any) -> Gateway:
            return await stack.enter_async_context(running(**settings))

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
