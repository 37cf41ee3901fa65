"""The stages of a stop, and the signals, on a real port in the test's own process."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from structlog.testing import capture_logs

from server.commands import http_server
from server.commands.http_server import HttpServer
from server.commands.terminal import Terminal
from server.state import AppState
from tests.server.gateway import build, eventually

LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}
SLOW = {"fake_step_ms": 20, "fake_acceptance": 0}


@dataclass
class Running:
    """A server that serves, and its client."""

    server: HttpServer
    state: AppState
    port: int
    task: "asyncio.Task[None]"
    client: httpx.AsyncClient
    reloads: list[int]
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Sends this process a signal."""
        os.kill(os.getpid(), number)

    async def ended(self, seconds: float = 60) -> float:
        """Waits for the end; returns how long it took."""
        begun = time.monotonic()
        await asyncio.wait_for(asyncio.shield(self.task), seconds)
        return time.monotonic() - begun

    async def connect(self, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A raw connection that has sent something."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(sent)
        await writer.drain()
        return reader, writer

    async def accepts(self) -> bool:
        """Whether the port is open."""
        try:
            await self.connect(b"")
        except OSError:
            return False
        return True


Serve = Callable[..., Awaitable[Running]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts servers with the given settings."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    async with AsyncExitStack() as stack:

        async def begin(**settings: Any) -> Running:
            return await stack.enter_async_context(running(**settings))

        yield begin
    for number, handler in handlers.items():
        signal.signal(number, handler)


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Running]:
    app, _, _ = build(**settings)
    state: AppState = app.state.specgate
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    reloads: list[int] = []
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on")
    server = HttpServer(config, state, lambda: reloads.append(1))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30
    ) as client:
        try:
            await eventually(lambda: state.ready and server.started, 120)
            begun = Running(server, state, port, task, client, reloads)
            yield begun
            for writer in begun.writers:
                writer.close()
        finally:
            if not task.done():
                server.stop(signal.SIGTERM)
                server.stop(signal.SIGTERM)
            await asyncio.wait_for(task, 60)


def completion(body: dict[str, Any]) -> bytes:
    """A whole request over HTTP."""
    content = json.dumps(body).encode()
    return b"".join(
        [
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n",
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content),
            content,
        ]
    )


async def end_of(reader: asyncio.StreamReader) -> str:
    """Everything that comes until the connection is closed."""
    return (await asyncio.wait_for(reader.read(), 60)).decode()


async def test_it_is_not_ready_first_and_accepts_requests_until_the_port_closes(
    serve: Serve,
) -> None:
    server = await serve(shutdown_delay_s=2.0, shutdown_timeout_s=20)
    with capture_logs() as lines:
        server.signal()
        await eventually(lambda: server.state.leaving)
    assert [line["signal"] for line in lines if line["event"] == "stopping"] == ["SIGTERM"]
    probe = await server.client.get("/ready")
    assert (probe.status_code, probe.json()["error"]["code"]) == (503, "stopping")
    assert (await server.client.get("/health")).status_code == 200
    answer = await server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
    assert answer.status_code == 200
    assert await server.accepts()
    await server.ended()
    assert not await server.accepts()


async def test_running_requests_get_the_rest_of_the_time(serve: Serve) -> None:
    server = await serve(shutdown_timeout_s=20, engine_args=SLOW)
    reader, _ = await server.connect(completion({**LONG, "max_tokens": 40}))
    await reader.readuntil(b"data: ")
    server.signal()
    text = await end_of(reader)
    assert '"finish_reason":"length"' in text
    assert text.rstrip().endswith("data: [DONE]\n\r\n0") or "data: [DONE]" in text
    assert "error" not in text
    assert await server.ended() < 60


async def test_what_does_not_end_in_time_fails_as_stopping(serve: Serve) -> None:
    server = await serve(shutdown_timeout_s=1, engine_args=SLOW)
    stream, _ = await server.connect(completion(LONG))
    whole, _ = await server.connect(completion({**LONG, "stream": False}))
    await stream.readuntil(b"data: ")
    begun = time.monotonic()
    server.signal()
    events, answer = await end_of(stream), await end_of(whole)
    assert time.monotonic() - begun >= 0.9
    assert '"code":"stopping"' in events
    assert "data: [DONE]" in events
    assert answer.startswith("HTTP/1.1 503 ")
    assert '"code":"stopping"' in answer
    assert await server.ended() < 60


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_wait_for_requests(serve: Serve, number: int) -> None:
    server = await serve(shutdown_delay_s=500, shutdown_timeout_s=600, engine_args=SLOW)
    stream, _ = await server.connect(completion(LONG))
    await stream.readuntil(b"data: ")
    server.signal()
    await eventually(lambda: server.state.leaving)
    server.signal(number)
    text = await end_of(stream)
    assert '"code":"stopping"' in text
    assert "data: [DONE]" in text
    assert await server.ended() < 60


async def test_a_body_that_does_not_arrive_does_not_cost_the_whole_time(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "BODY_GRACE_S", 2.0)
    server = await serve(shutdown_timeout_s=600, engine_args=SLOW)
    half, _ = await server.connect(completion(LONG)[:-20])
    late, writer = await server.connect(completion({**LONG, "max_tokens": 30})[:-20])
    head, _ = await server.connect(b"POST /v1/completions HTTP/1.1\r\nHost: he")
    await eventually(lambda: len(server.state.reading) == 2)
    server.signal()
    await eventually(lambda: not server.server.servers[0].is_serving())
    writer.write(completion({**LONG, "max_tokens": 30})[-20:])
    assert await end_of(head) == ""
    refused, text = await end_of(half), await end_of(late)
    assert refused.startswith("HTTP/1.1 503 ")
    assert '"code":"stopping"' in refused
    assert '"finish_reason":"length"' in text
    assert await server.ended() < 60


async def test_an_unread_stream_is_cut_off_and_leaves_no_traceback(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "LAST_WORDS_S", 0.3)
    server = await serve(shutdown_timeout_s=1, max_model_len=100_000)
    body = {**LONG, "max_tokens": 50_000, "n": 4, "logprobs": 5}
    reader, writer = await server.connect(completion(body))
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(0.3)
    begun = time.monotonic()
    server.signal()
    await server.ended()
    assert time.monotonic() - begun < 60
    assert "Traceback" not in caplog.text
    del reader


async def test_sighup_reloads_and_does_not_stop(serve: Serve) -> None:
    server = await serve()
    server.signal(signal.SIGHUP)
    server.signal(signal.SIGHUP)
    await eventually(lambda: len(server.reloads) >= 1)
    assert (await server.client.get("/ready")).status_code == 200


async def test_a_closed_terminal_is_a_stop(serve: Serve) -> None:
    controller, terminal = os.openpty()
    try:
        server = await serve()
        server.server._terminal = Terminal(terminal)
        server.signal(signal.SIGHUP)
        await eventually(lambda: bool(server.reloads))
        os.close(controller)
        server.signal(signal.SIGHUP)
        assert await server.ended() < 60
        assert len(server.reloads) == 1
    finally:
        os.close(terminal)


@pytest.mark.parametrize("stops", [3, pytest.param(20, marks=pytest.mark.prove)])
async def test_stops_under_load_lose_no_request_silently(serve: Serve, stops: int) -> None:
    seen = {"whole": 0, "stopping": 0, "not begun": 0}
    for _ in range(stops):
        server = await serve(shutdown_timeout_s=1, engine_args={"fake_step_ms": 5})
        before = seen["whole"]
        clients = [asyncio.create_task(client(server, number, seen)) for number in range(12)]
        # The long answers have begun before the short ones end.
        await eventually(lambda least=before + 12: seen["whole"] >= least)  # type: ignore[misc]
        server.signal()
        await server.ended()
        await asyncio.wait_for(asyncio.gather(*clients), 60)
    assert seen["whole"] >= stops
    assert seen["stopping"] >= stops


async def client(server: Running, number: int, seen: dict[str, int]) -> None:
    """Sends until the port is closed; every answer is whole, or says that the server stops."""
    while True:
        # Some answers are shorter than the time that is left, and some are longer.
        body = {**LONG, "max_tokens": 10 if number % 3 else 2000, "stream": bool(number % 2)}
        begun = False
        try:
            async with server.client.stream("POST", "/v1/completions", json=body) as answer:
                begun = True
                text = (await answer.aread()).decode()
        except httpx.TransportError:
            assert not begun, "an answer was cut"
            seen["not begun"] += 1
            return
        if '"code":"stopping"' in text:
            assert (answer.status_code == 503) or text.endswith("data: [DONE]\n\n")
            assert '"finish_reason":"' not in text
            seen["stopping"] += 1
        else:
            assert answer.status_code == 200, text
            assert '"finish_reason":"length"' in text
            seen["whole"] += 1
