"""A gateway on the fake engine, and clients for it."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from engine_adapter.fake.engine import FakeEngine
from engine_adapter.seam.counts import SpecStats, StepKind
from engine_adapter.seam.factory import create_engine
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.types import Delta, FinishReason, GenerationRequest
from server.app import create_app
from server.control.admin.audit import Audit
from server.lifespan import StartupCallbacks
from server.settings import Settings
from server.state import AppState, Runtime
from server.telemetry.metrics import Metrics

MODEL = "specgate-demo"
BASE_URL = "http://127.0.0.1:8000"


@dataclass
class Gateway:
    """An application whose lifespan runs, with a client that calls it in process."""

    app: FastAPI
    engine: FakeEngine
    registry: CollectorRegistry
    client: httpx.AsyncClient

    @property
    def state(self) -> AppState:
        """The application's state."""
        state: AppState = self.app.state.specgate
        return state

    @property
    def runtime(self) -> Runtime:
        """The objects that exist since the engine started."""
        assert self.state.runtime is not None
        return self.state.runtime

    async def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        """Posts a JSON body, lone surrogates included, which httpx refuses to encode."""
        headers = {"content-type": "application/json", **kwargs.pop("headers", {})}
        return await self.client.post(path, content=json.dumps(body), headers=headers, **kwargs)

    async def complete(self, prompt: Any = "def f(x):", **fields: Any) -> httpx.Response:
        """Requests a completion."""
        return await self.post("/v1/completions", {"prompt": prompt, **fields})

    async def chat(self, content: Any = "Say hello.", **fields: Any) -> httpx.Response:
        """Requests a chat completion for one user message."""
        messages = [{"role": "user", "content": content}]
        return await self.post("/v1/chat/completions", {"messages": messages, **fields})

    def exchange(self, path: str, body: Any, **more: Any) -> "Exchange":
        """A POST whose client can disconnect."""
        return Exchange(self.app, path, json.dumps(body).encode(), **more)

    def sample(self, name: str, **labels: str) -> float | None:
        """A metric's value."""
        return self.registry.get_sample_value(name, labels)

    @property
    def steps(self) -> float:
        """The engine's steps so far."""
        samples = (self.sample("specgate_step_seconds_count", kind=kind) for kind in StepKind)
        return sum(count for count in samples if count is not None)


def build(
    callbacks: StartupCallbacks | None = None,
    engine: Engine | None = None,
    audit: Audit | None = None,
    **settings: Any,
) -> tuple[FastAPI, Engine, CollectorRegistry]:
    """An application over an engine that has not started."""
    arguments = {"fake_step_ms": 0, **settings.pop("engine_args", {})}
    settings.setdefault("spec_method", "draft" if "proposer" not in settings else None)
    made = Settings(engine="fake", engine_args=arguments, **settings)
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    engine = engine or create_engine("fake", made.engine_config(), registry, metrics)
    return create_app(made, engine, metrics, registry, callbacks, audit), engine, registry


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of a whole stream, which must end with [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    data = [line.removeprefix("data: ") for line in lines if not line.startswith(":")]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]


def record_requests(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """Replaces the engine's answers by `{}`; the requests that it gets are in the list."""
    requests: list[GenerationRequest] = []

    async def generate(request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        requests.append(request)
        yield Delta("{}", (5,), finish_reason=FinishReason.STOP, spec=SpecStats())

    monkeypatch.setattr(gateway.engine, "generate", generate)
    return requests


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits until the condition holds; fails if it does not in time, however busy the machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0.002)


@dataclass
class Exchange:
    """One raw ASGI exchange: the messages sent so far, and a client that can disconnect.

    `on_send` is called with each message when it is sent; `key` is the API key.
    """

    app: FastAPI
    path: str
    body: bytes
    on_send: Callable[[MutableMapping[str, Any]], None] = lambda message: None
    sent: list[MutableMapping[str, Any]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    key: str = ""
    _body_sent: bool = False

    def begin(self) -> "asyncio.Task[None]":
        """Starts the exchange."""
        return asyncio.create_task(self.app(self._scope(), self._receive, self._send))

    @property
    def status(self) -> int | None:
        """The response's status, once it has begun."""
        return self.sent[0]["status"] if self.sent else None

    @property
    def text(self) -> str:
        """The response's body so far."""
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    def leave(self) -> None:
        """Disconnects."""
        self.gone.set()

    def _scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"content-type", b"application/json"),
                (b"host", b"127.0.0.1:8000"),
                *([(b"authorization", f"Bearer {self.key}".encode())] if self.key else []),
            ],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
            "app": self.app,
        }

    async def _receive(self) -> dict[str, Any]:
        if not self._body_sent:
            self._body_sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)
        self.on_send(message)
