"""From an open port to a started engine, or to a reported failure."""

import asyncio
from typing import Any

import pytest

from engine_adapter.seam.errors import EngineConfigError, EngineStartError
from engine_adapter.seam.types import EngineInfo
from server.control.method_names import MethodRequest
from server.control.switching.errors import DrainStopped
from server.lifespan import StartupCallbacks
from server.state import AppState
from tests.server.gateway import build


class Recorder:
    """Records the callbacks in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.callbacks = StartupCallbacks(self._progress, self._ready, self._failed)

    def _progress(self, line: str) -> None:
        self.events.append(("progress", line))

    def _ready(self, info: EngineInfo) -> None:
        self.events.append(("ready", info))

    def _failed(self, error: Exception) -> None:
        self.events.append(("failed", error))


async def test_progress_then_ready() -> None:
    recorder = Recorder()
    app, engine, _ = build(recorder.callbacks, engine_args={"fake_start_s": 0.05})
    state: AppState = app.state.specgate
    async with app.router.lifespan_context(app):
        assert not state.ready
        await state.start_ended.wait()
        assert state.ready
    kinds = [kind for kind, _ in recorder.events]
    assert kinds[:-1] == ["progress"] * (len(kinds) - 1)
    assert len(kinds) > 1
    assert recorder.events[-1] == ("ready", engine.info)


async def test_failed_start_is_recorded_and_reported() -> None:
    recorder = Recorder()
    app, _, _ = build(recorder.callbacks, engine_args={"fake_fail_start": "no memory"})
    state: AppState = app.state.specgate
    async with app.router.lifespan_context(app):
        await state.start_ended.wait()
        assert not state.ready
        assert isinstance(state.startup_error, EngineStartError)
    assert recorder.events[-1] == ("failed", state.startup_error)
    assert "ready" not in dict(recorder.events)


async def test_an_unreadable_tokenizer_is_a_failed_start(monkeypatch: Any) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        raise OSError("no tokenizer here")

    monkeypatch.setattr("server.lifespan.Renderer.load", load)
    recorder = Recorder()
    app, _, _ = build(recorder.callbacks)
    async with app.router.lifespan_context(app):
        await app.state.specgate.start_ended.wait()
    assert recorder.events[-1][0] == "failed"
    assert not isinstance(recorder.events[-1][1], EngineConfigError)


async def test_stop_while_loading_ends_immediately() -> None:
    recorder = Recorder()
    app, _, _ = build(recorder.callbacks, engine_args={"fake_start_s": 60})
    async with asyncio.timeout(30):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0.01)
    assert "failed" not in dict(recorder.events)


async def test_stop_ends_a_running_engine() -> None:
    app, engine, _ = build(engine_args={"fake_step_ms": 5})
    state: AppState = app.state.specgate
    async with app.router.lifespan_context(app):
        await state.start_ended.wait()
    assert not state.ready
    assert engine.failure is None


async def test_a_server_that_is_told_to_stop_while_it_loads_begins_no_drain() -> None:
    app, _, _ = build(engine_args={"fake_start_s": 0.05})
    state: AppState = app.state.specgate
    async with app.router.lifespan_context(app):
        state.leave()
        await state.start_ended.wait()
        assert state.runtime is not None
        with pytest.raises(DrainStopped):
            await state.runtime.switcher.switch(MethodRequest("none", None, True), "drain")
