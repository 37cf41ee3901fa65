"""From an open port to a started engine, or to a reported failure."""

import asyncio
from typing import Any

from engine_adapter.errors import EngineConfigError, EngineStartError
from engine_adapter.types import EngineInfo
from server.lifespan import Hooks
from server.state import State
from tests.server.gateway import build


class Heard:
    """What the hooks were told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.hooks = Hooks(self._progress, self._ready, self._failed)

    def _progress(self, line: str) -> None:
        self.events.append(("progress", line))

    def _ready(self, info: EngineInfo) -> None:
        self.events.append(("ready", info))

    def _failed(self, error: Exception) -> None:
        self.events.append(("failed", error))


async def test_progress_then_ready() -> None:
    heard = Heard()
    app, engine, _ = build(heard.hooks, engine_args={"fake_start_s": 0.05})
    state: State = app.state.specgate
    async with app.router.lifespan_context(app):
        assert not state.ready
        await state.started.wait()
        assert state.ready
    kinds = [kind for kind, _ in heard.events]
    assert kinds[:-1] == ["progress"] * (len(kinds) - 1)
    assert len(kinds) > 1
    assert heard.events[-1] == ("ready", engine.info)


async def test_failed_start_is_recorded_and_reported() -> None:
    heard = Heard()
    app, _, _ = build(heard.hooks, engine_args={"fake_fail_start": "no memory"})
    state: State = app.state.specgate
    async with app.router.lifespan_context(app):
        await state.started.wait()
        assert not state.ready
        assert isinstance(state.startup_error, EngineStartError)
    assert heard.events[-1] == ("failed", state.startup_error)
    assert "ready" not in dict(heard.events)


async def test_tokenizer_that_cannot_be_read_is_a_failed_start(monkeypatch: Any) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        raise OSError("no tokenizer here")

    monkeypatch.setattr("server.lifespan.Renderer.load", load)
    heard = Heard()
    app, _, _ = build(heard.hooks)
    async with app.router.lifespan_context(app):
        await app.state.specgate.started.wait()
    assert heard.events[-1][0] == "failed"
    assert not isinstance(heard.events[-1][1], EngineConfigError)


async def test_stop_while_loading_ends_at_once() -> None:
    heard = Heard()
    app, _, _ = build(heard.hooks, engine_args={"fake_start_s": 60})
    async with asyncio.timeout(5):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0.01)
    assert "failed" not in dict(heard.events)


async def test_stop_ends_what_runs() -> None:
    app, engine, _ = build(engine_args={"fake_step_ms": 5})
    state: State = app.state.specgate
    async with app.router.lifespan_context(app):
        await state.started.wait()
    assert not state.ready
    assert state.draining
    assert engine.failure is None
