"""Systems without a server, with made-up timing."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from benchmarks.system import System
from benchmarks.timeline import Timeline
from benchmarks.workload import Request
from engine_adapter.proposers import draft_options
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.types import NONE

NGRAM = ProposerSpec("look", "ngram", 5, None, {"prompt_lookup_min": 2, "prompt_lookup_max": 5})
HEADS = ProposerSpec("heads", "mlp_speculator", 3, "folder/heads", draft_options.OPTIONS)


def timeline(start_s: float, step_s: float, *emitted: int) -> Timeline:
    """A stream whose steps take `step_s`; its first event comes at `start_s`."""
    times = start_s + step_s * np.arange(len(emitted), dtype=np.float64)
    return Timeline(times, np.cumsum(emitted))


@dataclass
class SteadySystem:
    """Every step takes `step_s`; a draft doubles the tokens."""

    name: str
    step_s: float
    bursts: list[Sequence[Request]] = field(default_factory=list)

    async def send_burst(self, requests: Sequence[Request]) -> list[Timeline]:
        """One timeline for each request."""
        self.bursts.append(requests)
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Timeline:
        each = 1 if request.proposer == NONE else 2
        steps = (request.max_tokens - 1) // each
        return timeline(0.0, self.step_s, 1, *[each] * steps)


@dataclass
class SteadyLauncher:
    """Stock's steps take 10 ms, Specgate's 11 ms, and 12 ms with all proposers loaded."""

    started: list[str] = field(default_factory=list)
    systems: list[SteadySystem] = field(default_factory=list)

    @asynccontextmanager
    async def stock(self, target: str, spec: ProposerSpec | None) -> AsyncIterator[System]:
        """A system with steps of 10 ms."""
        self.started.append(f"stock {spec.name if spec else NONE}")
        yield self._system("stock", 0.010)

    @asynccontextmanager
    async def specgate(
        self, name: str, target: str, specs: Sequence[ProposerSpec]
    ) -> AsyncIterator[System]:
        """A system with steps of 11 or 12 ms."""
        self.started.append(f"{name} {' '.join(spec.name for spec in specs)}".strip())
        yield self._system(name, 0.012 if name == "all" else 0.011)

    def _system(self, name: str, step_s: float) -> SteadySystem:
        self.systems.append(SteadySystem(name, step_s))
        return self.systems[-1]
