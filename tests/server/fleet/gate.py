"""An engine that does not answer until a test lets it."""

import asyncio
from typing import Any

import pytest

from engine_adapter.seam.interface import Engine


class Gate:
    """Holds the first call of an engine's method until a test opens it."""

    def __init__(self, engine: Engine, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._opened = asyncio.Event(), asyncio.Event()
        self._call = getattr(engine, method)
        monkeypatch.setattr(engine, method, self._held)

    async def _held(self, *args: Any, **kwargs: Any) -> None:
        self.reached.set()
        await self._opened.wait()
        await self._call(*args, **kwargs)

    def open(self) -> None:
        self._opened.set()
