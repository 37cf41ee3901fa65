"""A request leaves nothing behind that only the garbage collector can free.

A collector's pass stops all streams, so the server starts it rarely.
"""

import asyncio
import json
import weakref
from typing import Any

import pytest

from tests.server.conftest import StartGateway

CHAT = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 3}

REQUESTS: dict[str, tuple[str, Any, int]] = {
    "a chat": ("/v1/chat/completions", CHAT, 200),
    "a stream": ("/v1/chat/completions", CHAT | {"stream": True}, 200),
    "a refused field": ("/v1/chat/completions", CHAT | {"temperature": "hot"}, 400),
    "an unknown model": ("/v1/chat/completions", CHAT | {"model": "other"}, 404),
    "an unknown path": ("/v1/nothing", {}, 404),
    "a body that is not JSON": ("/v1/chat/completions", b'{"messages": ', 400),
    "a body that is nested too deep": ("/v1/chat/completions", b"[" * 100_000, 400),
}


class Cycle:
    """A request as uvicorn has it: its scope leads to `send`, which leads to its scope."""

    def __init__(self, app: Any, path: str, body: bytes) -> None:
        self.status = 0
        self._parts = [{"type": "http.request", "body": body, "more_body": False}]
        self._scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 5000),
            "app": app,
        }

    async def run(self, app: Any) -> None:
        """Has the request answered."""
        await app(self._scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            return self._parts.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_request_is_freed_at_its_end(
    start: StartGateway, no_collector: None, kind: str
) -> None:
    gateway = await start()
    path, body, status = REQUESTS[kind]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    cycle = Cycle(gateway.app, path, content)
    await cycle.run(gateway.app)
    assert cycle.status == status
    freed = weakref.ref(cycle)
    del cycle
    await asyncio.sleep(0)
    assert freed() is None
