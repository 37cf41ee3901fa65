"""The active spec method: who changes it, one at a time, and what is in flight under it.

A switch goes to the engine first and is published after, so that the generation a request is
admitted with is never newer than the engine's. A failed switch leaves the old method.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

import structlog

from engine_adapter.interface import Engine, SpecMethod
from server.control.selection import (
    ActiveMethod,
    Asked,
    ProposerCatalog,
    SelectionError,
    resolve,
)
from server.metrics import Metrics

MODES = ("immediate", "new_requests")
"""The ways to switch that exist."""

log = structlog.get_logger(__name__)

HISTORY = 100
"""How many switches `Switcher.history` remembers."""


class SwitchInProgress(Exception):
    """Another switch has not ended yet."""


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """A switch that happened.

    Attributes:
        in_flight: requests that were admitted and unfinished when it took effect.
        waited_ms: from the call to the engine's confirmation.
    """

    previous: SpecMethod
    active: SpecMethod
    mode: str
    generation: int
    in_flight: int
    waited_ms: float


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """A line of the history.

    Attributes:
        when: Unix time in seconds at which it was asked for.
        outcome: `switched` or `failed`.
        error: why it failed, else `None`.
        took_ms: how long it took.
    """

    when: float
    previous: SpecMethod
    to: SpecMethod
    mode: str
    generation: int
    reason: str | None
    outcome: str
    error: str | None
    took_ms: float


@dataclass(slots=True, eq=False)
class _Admission:
    """One request between admission and end."""

    proposer: str
    pinned: bool


class Switcher:
    """Holds the active method and changes it. Lives on the event loop; nothing here blocks.

    Args:
        initial: the method at start, by any name that a switch takes.

    Raises:
        SelectionError: `initial` names nothing in the catalog.
    """

    def __init__(
        self, engine: Engine, catalog: ProposerCatalog, metrics: Metrics, initial: str
    ) -> None:
        method = resolve(Asked(initial, None, True, "spec_method"), catalog)
        self._engine = engine
        self._catalog = catalog
        self._metrics = metrics
        self._admissions: set[_Admission] = set()
        self._history: deque[SwitchRecord] = deque(maxlen=HISTORY)
        self._running: asyncio.Task[SwitchResult] | None = None
        self._generation = 0
        self._active: ActiveMethod
        self._publish(method)
        metrics.proposers(catalog.names)
        metrics.declare_switches(MODES)

    @property
    def active(self) -> ActiveMethod:
        """What drafts for requests that do not choose for themselves."""
        return self._active

    @property
    def history(self) -> tuple[SwitchRecord, ...]:
        """The last switches, newest first; refused ones are not among them."""
        return tuple(reversed(self._history))

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Admitted, unfinished requests by what drafts for them now."""
        return Counter(admission.proposer for admission in self._admissions)

    @contextmanager
    def admitted(self, name: str, *, pinned: bool = False) -> Iterator[None]:
        """Counts a request in flight, under the proposer `name`, while the block runs."""
        admission = _Admission(name, pinned)
        self._admissions.add(admission)
        try:
            yield
        finally:
            self._admissions.discard(admission)

    async def switch(
        self, asked: Asked, mode: str = "immediate", reason: str | None = None
    ) -> SwitchResult:
        """Makes what is asked for the active method.

        A caller that is cancelled does not stop a switch that has begun: engine and gateway
        would disagree.

        Raises:
            SelectionError: an unknown mode or proposer, or a k too large; nothing changed.
            SwitchInProgress: another switch runs; nothing changed.
            EngineError: the engine failed; the old method stays active.
        """
        if mode not in MODES:
            raise SelectionError(f"mode must be one of {', '.join(MODES)}", "mode", "unknown_mode")
        method = resolve(asked, self._catalog)
        if self._running is not None and not self._running.done():
            self._metrics.switched(mode, "refused")
            raise SwitchInProgress
        self._running = asyncio.create_task(self._switch(method, mode, reason))
        return await asyncio.shield(self._running)

    async def _switch(self, method: SpecMethod, mode: str, reason: str | None) -> SwitchResult:
        previous = self._active.method
        # A failed attempt uses its number up too: the engine may have seen it.
        self._generation += 1
        generation, begun = self._generation, time.perf_counter()
        record = partial(SwitchRecord, time.time(), previous, method, mode, generation, reason)
        try:
            await self._engine.switch(method, generation, running=mode == "immediate")
        except Exception as error:
            why = str(error) or type(error).__name__
            self._record(record("failed", why, _ms_since(begun)))
            # Were it applied after all, later requests must not look older than it.
            self._active = replace(self._active, generation=generation)
            raise
        took_ms = _ms_since(begun)
        self._record(record("switched", None, took_ms))
        if mode == "immediate":
            self._move_unpinned(method.proposer)
        self._publish(method)
        return SwitchResult(previous, method, mode, generation, len(self._admissions), took_ms)

    def _record(self, record: SwitchRecord) -> None:
        self._history.append(record)
        self._metrics.switched(record.mode, record.outcome, record.took_ms / 1e3)
        log.info("spec_method_switch", **asdict(record))

    def _move_unpinned(self, name: str) -> None:
        for admission in self._admissions:
            if not admission.pinned:
                admission.proposer = name

    def _publish(self, method: SpecMethod) -> None:
        self._active = ActiveMethod(method, method.proposer, self._generation, time.time())
        self._metrics.spec_method(method.proposer)


def _ms_since(begun: float) -> float:
    return round((time.perf_counter() - begun) * 1e3, 3)
