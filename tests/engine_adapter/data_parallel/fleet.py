"""Several fake engines behind one `DataParallelEngine`, and faults of one of them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from demo import model_path
from engine_adapter.data_parallel.engine import DataParallelEngine
from engine_adapter.fake.engine import FakeEngine
from engine_adapter.fake.sequence import FakeSequence
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.factory import create_engine
from engine_adapter.seam.interface import Engine, EngineObserver
from engine_adapter.seam.types import Delta, GenerationRequest, SpecMethod
from tests.engine_adapter.fake.harness import Reports, make_request
from tests.server.gateway import eventually

PROPOSERS = parse_specs(
    [
        {"name": "ngram", "num_speculative_tokens": 3},
        {"name": "suffix", "num_speculative_tokens": 4},
    ]
)

ENDLESS = 1500
"""Tokens of a sequence that a test ends itself."""

SLOW = {"fake_step_ms": 5, "fake_length": 4000}
NGRAM, SUFFIX = SpecMethod("ngram", 3), SpecMethod("suffix", 4)


@dataclass
class Fleet:
    """The engine, and the fake engines that it has."""

    engine: DataParallelEngine
    ranks: list[FakeEngine]
    registry: CollectorRegistry
    reports: Reports

    @property
    def running(self) -> list[int]:
        """How many sequences each engine has."""
        return [rank.num_running + rank.num_waiting for rank in self.ranks]

    def sequences(self, index: int) -> list[FakeSequence]:
        """The live sequences of an engine."""
        return list(self.ranks[index]._batch.live())

    def names(self, index: int) -> list[str]:
        """The proposers of one engine."""
        return [info.name for info in self.ranks[index].info.proposers]

    async def run(self, request: GenerationRequest) -> list[Delta]:
        """All deltas of a request."""
        return [delta async for delta in self.engine.generate(request)]

    def begin(self, request: GenerationRequest) -> "asyncio.Task[list[Delta]]":
        """The same in a task."""
        return asyncio.create_task(self.run(request))


def build(
    size: int = 2, own: Mapping[int, Mapping[str, Any]] | None = None, **arguments: Any
) -> Fleet:
    """A fleet that has not started; `own` has further arguments of one engine."""
    registry, reports = CollectorRegistry(), Reports()
    ranks: list[FakeEngine] = []

    def create(index: int, observer: EngineObserver) -> Engine:
        options = {"fake_step_ms": 0, **arguments, **(own or {}).get(index, {})}
        config = EngineConfig(
            str(model_path("target")), "m", PROPOSERS, None, options, data_parallel_index=index
        )
        engine = create_engine("fake", config, registry, observer)
        assert isinstance(engine, FakeEngine)
        ranks.append(engine)
        return engine

    engine = DataParallelEngine(create, size, PROPOSERS, reports)
    return Fleet(engine, ranks, registry, reports)


def fails_once(engine: FakeEngine, method: str, error: Exception | None = None) -> None:
    """The next call of an asynchronous method raises; without an error, the engine dies in it."""

    async def failing(*_: Any, **__: Any) -> Any:
        delattr(engine, method)
        if error is not None:
            raise error
        engine.die()
        raise engine.failure or AssertionError

    setattr(engine, method, failing)


async def running(fleet: Fleet, method: SpecMethod) -> list[asyncio.Task[Any]]:
    """Four endless sequences of a method, two at each engine."""
    tasks = [
        fleet.begin(make_request(f"r{i}", method, prompt=(i, i + 1, i + 2), max_tokens=ENDLESS))
        for i in range(4)
    ]
    await eventually(lambda: fleet.running == [2, 2])
    return tasks


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    """The callers of some requests leave."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def methods(fleet: Fleet, index: int) -> set[SpecMethod]:
    """The methods of an engine's sequences."""
    return {sequence.spec_method for sequence in fleet.sequences(index)}


def kills(fleet: Fleet, index: int) -> None:
    """Kills an engine whose replacement is announced; `back` replaces it."""
    fleet.ranks[index].die("killed", 60.0)


async def back(fleet: Fleet, index: int) -> None:
    """The replacement of a dead engine serves."""
    fleet.ranks[index]._lifetime._restart()
    await eventually(lambda: fleet.engine.failures[index] is None)
