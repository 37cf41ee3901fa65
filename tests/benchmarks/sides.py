"""Sides that need no server: their timing is made up."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from benchmarks.side import Side
from benchmarks.timeline import Timeline
from benchmarks.workload import Request
from engine_adapter.proposers import draft_options
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.types import NONE

NGRAM = ProposerSpec("look", "ngram", 5, None, {"prompt_lookup_min": 2, "prompt_lookup_max": 5})
HEADS = ProposerSpec("heads", "mlp_speculator", 3, "folder/heads", draft_options.OPTIONS)


def timeline(start_s: float, step_s: float, *emitted: int) -> Timeline:
    """A stream whose steps take `step_s`; its first event comes at `start_s`."""
    times = start_s + step_s * np.arange(len(emitted))
    return Timeline(times, np.cumsum(emitted))


@dataclass
class SteadySide:
    """Every step takes `step_s`; a draft doubles the tokens."""

    name: str
    step_s: float
    asked: list[Sequence[Request]] = field(default_factory=list)

    async def wave(self, requests: Sequence[Request]) -> list[Timeline]:
        """One timeline for each request."""
        self.asked.append(requests)
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Timeline:
        each = 1 if request.proposer == NONE else 2
        steps = (request.max_tokens - 1) // each
        return timeline(0.0, self.step_s, 1, *[each] * steps)


@dataclass
class SteadyHost:
    """Stock's steps take 10 ms, Specgate's 11, and 12 with everything loaded."""

    started: list[str] = field(default_factory=list)
    sides: list[SteadySide] = field(default_factory=list)

    @asynccontextmanager
    async def stock(self, target: str, spec: ProposerSpec | None) -> AsyncIterator[Side]:
        """A side of 10 ms."""
        self.started.append(f"stock {spec.name if spec else NONE}")
        yield self._side("stock", 0.010)

    @asynccontextmanager
    async def specgate(
        self, name: str, target: str, specs: Sequence[ProposerSpec]
    ) -> AsyncIterator[Side]:
        """A side of 11 or 12 ms."""
        self.started.append(f"{name} {' '.join(spec.name for spec in specs)}".strip())
        yield self._side(name, 0.012 if name == "all" else 0.011)

    def _side(self, name: str, step_s: float) -> SteadySide:
        self.sides.append(SteadySide(name, step_s))
        return self.sides[-1]
