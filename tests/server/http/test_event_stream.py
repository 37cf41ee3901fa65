"""Framing, errors and disconnects of a stream, without an application."""

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine_adapter.seam.errors import EngineDead
from server.errors import ClientDisconnected
from server.http.event_stream import DONE, KEEP_ALIVE, EventStream, event, until_disconnect


class Wire:
    """The two ASGI callables of one exchange."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.sent_at: list[float] = []
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.sent_at.append(asyncio.get_running_loop().time())

    @property
    def bodies(self) -> list[bytes]:
        return [message.get("body", b"") for message in self.sent]

    @property
    def body(self) -> bytes:
        return b"".join(self.bodies)

    async def run(self, events: AsyncGenerator[bytes, None], keepalive_s: float = 0) -> None:
        response = EventStream(events, keepalive_s=keepalive_s)
        await response({"type": "http"}, self.receive, self.send)


@pytest.mark.parametrize("text", ["a\nb\r\nc", "\x85 \u2028 \u2029", "漢字 🙂", '"\\'])
def test_an_event_is_one_line_for_every_line_splitter(text: str) -> None:
    encoded = event({"text": text})
    decoded = encoded.decode()
    assert decoded.endswith("\n\n")
    assert len(decoded.splitlines()) == 2
    assert json.loads(decoded.removeprefix("data: ")) == {"text": text}


def test_an_event_refuses_values_that_json_lacks() -> None:
    with pytest.raises(ValueError, match="float"):
        event({"logprob": float("-inf")})


async def test_events_are_sent_as_they_come_and_the_body_ends() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"one"
        assert wire.body == b"one"
        yield b"two"

    wire = Wire()
    await wire.run(events())
    assert wire.body == b"onetwo"
    assert [message.get("more_body") for message in wire.sent[1:]] == [True, True, False]
    headers = dict(wire.sent[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert b"content-length" not in headers


async def test_failure_before_the_first_event_is_raised() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        raise EngineDead("gone")
        yield b""

    wire = Wire()
    with pytest.raises(EngineDead):
        await wire.run(events())
    assert wire.sent == []


async def test_failure_after_the_first_event_is_an_event_and_done() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise RuntimeError("a secret of the server")

    wire = Wire()
    await wire.run(events())
    assert wire.body.endswith(DONE)
    error = json.loads(wire.body.split(b"\n\n")[0].removeprefix(b"onedata: "))["error"]
    assert (error["code"], error["type"]) == ("internal_error", "server_error")
    assert b"secret" not in wire.body
    assert wire.sent[-1]["more_body"] is False


async def test_comments_fill_silence_only() -> None:
    keepalive_s = 0.1

    async def events() -> AsyncGenerator[bytes, None]:
        for _ in range(30):
            await asyncio.sleep(0.01)
            yield b"."
        while not wire.body.endswith(KEEP_ALIVE * 2):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        yield b"!"

    wire = Wire()
    await wire.run(events(), keepalive_s=keepalive_s)
    # A busy machine may make a silence between two events, but each comment has one before it.
    silences = [
        at - before
        for (before, _), (at, body) in pairwise(zip(wire.sent_at, wire.bodies, strict=True))
        if body == KEEP_ALIVE
    ]
    assert len(silences) >= 2
    assert min(silences) >= keepalive_s
    assert wire.body.rpartition(b".")[2] == KEEP_ALIVE * 2 + b"!"


@pytest.mark.parametrize("at_yield", [False, True])
async def test_disconnect_closes_the_generator(at_yield: bool) -> None:
    closed = asyncio.Event()

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            await asyncio.sleep(60)
        finally:
            closed.set()

    wire = Wire()
    if at_yield:
        # The client stops reading, so the server waits in `send`.
        async def stuck(message: Any) -> None:
            wire.sent.append(message)
            if len(wire.sent) > 1:
                await asyncio.sleep(60)

        wire.send = stuck  # type: ignore[method-assign]
    task = asyncio.create_task(wire.run(events()))
    await asyncio.sleep(0.01)
    assert not closed.is_set()
    wire.gone.set()
    await asyncio.wait_for(task, 60)
    assert closed.is_set()


async def test_a_stopping_server_closes_the_generator_with_an_error_event() -> None:
    closed = asyncio.Event()

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            await asyncio.sleep(60)
        finally:
            closed.set()

    wire = Wire()
    task = asyncio.create_task(wire.run(events()))
    await asyncio.sleep(0.01)
    with capture_logs() as logs:
        task.cancel()
        await task
    assert closed.is_set()
    assert wire.body.startswith(b"one")
    assert b'"code":"stopping"' in wire.body
    assert [(entry["event"], entry["code"]) for entry in logs] == [("stream_failed", "stopping")]
    assert wire.body.endswith(b"data: [DONE]\n\n")
    assert wire.sent[-1]["more_body"] is False


async def test_a_stream_that_has_ended_as_the_server_stops_gets_no_more_events() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"whole"

    class StoppingWire(Wire):
        async def send(self, message: Any) -> None:
            await super().send(message)
            if message.get("more_body") is False:
                running.cancel()

    wire = StoppingWire()
    running = asyncio.create_task(wire.run(events()))
    await running
    assert wire.bodies == [b"", b"whole", b""]


async def test_a_cancellation_from_elsewhere_is_an_error_and_not_a_stop() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise asyncio.CancelledError

    wire = Wire()
    await wire.run(events())
    assert b'"code":"internal_error"' in wire.body
    assert wire.body.endswith(DONE)

    async def silent() -> AsyncGenerator[bytes, None]:
        raise asyncio.CancelledError
        yield b""

    with pytest.raises(RuntimeError, match="cancelled from within"):
        await Wire().run(silent())


async def test_until_disconnect_returns_the_result_or_cancels() -> None:
    wire = Wire()
    assert await until_disconnect(wire.receive, asyncio.sleep(0, "done")) == "done"
    wire.gone.set()
    with pytest.raises(ClientDisconnected):
        await until_disconnect(wire.receive, asyncio.sleep(60))
