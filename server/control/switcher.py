"""The active spec method: who changes it, one at a time.

A switch has four phases: prepare (is it possible, is it the only one), fence (a drain holds what
comes and waits for what was admitted), swap (the engine), release. The engine has a method before
it is published, so that the generation a request is admitted with is never newer than the
engine's. A switch that fails, or does not get past its fence, leaves the old method.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine_adapter.interface import Engine
from engine_adapter.types import SpecMethod, Switch
from server.control.audit import Audit, AuditRecord
from server.control.gate import Gate
from server.control.in_flight import InFlight
from server.control.selection import (
    ActiveMethod,
    LoadedProposers,
    MethodRequest,
    SelectionError,
    resolve,
)
from server.control.types import DRAIN_TIMEOUT_S, SERVER, Caller, SwitchMode, SwitchOutcome
from server.telemetry.metrics import Metrics


class SwitchInProgress(Exception):
    """Another switch has not ended yet."""

    def __init__(self) -> None:
        super().__init__("another switch has not ended yet")


class ProposerQuarantined(Exception):
    """The proposer is quarantined, so it would draft nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(f"proposer {name!r} is quarantined; unload it and load it again")


class DrainTimeout(Exception):
    """Admitted requests did not end in time; nothing changed.

    Attributes:
        in_flight: how many were left.
    """

    def __init__(self, timeout_s: float, in_flight: int) -> None:
        super().__init__(f"{in_flight} admitted requests did not end within {timeout_s:g} s")
        self.in_flight = in_flight


class DrainStopped(Exception):
    """The server stops, so a drain was given up; nothing changed."""

    def __init__(self) -> None:
        super().__init__("the server is stopping")


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """A switch that happened.

    Attributes:
        in_flight: requests that were admitted and unfinished when it took effect.
        waited_ms: from the call to the engine's confirmation.
    """

    previous: SpecMethod
    active: SpecMethod
    mode: SwitchMode
    generation: int
    in_flight: int
    waited_ms: float


@dataclass(frozen=True, slots=True)
class Drain:
    """A drain that waits for admitted requests to end.

    Attributes:
        held: requests that wait for it.
        waited_ms: how long it has run.
    """

    to: SpecMethod
    held: int
    waited_ms: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A switch to be made: `when` in Unix seconds, `begun` by the performance counter."""

    caller: Caller
    method: SpecMethod
    previous: SpecMethod
    mode: SwitchMode
    timeout_s: float
    reason: str | None
    when: float
    begun: float

    @property
    def took_ms(self) -> float:
        return round((time.perf_counter() - self.begun) * 1e3, 3)


class Switcher:
    """Holds the active method and changes it. Lives on the event loop; nothing here blocks.

    Args:
        catalog: gives the proposers that are loaded now.
        initial: the method at start, by any name that a switch takes.

    Attributes:
        gate: what a request passes before it is admitted.
        in_flight: the requests that were admitted and have not ended.

    Raises:
        SelectionError: `initial` names nothing in the catalog.
    """

    def __init__(
        self,
        engine: Engine,
        catalog: Callable[[], LoadedProposers],
        metrics: Metrics,
        initial: str,
        audit: Audit,
    ) -> None:
        method = resolve(
            MethodRequest(initial, None, True, proposer_param="spec_method"), catalog()
        )
        self.gate = Gate()
        self.in_flight = InFlight()
        self._engine = engine
        self._catalog = catalog
        self._metrics = metrics
        self._audit = audit
        self._attempt: _Attempt | None = None
        self._swapping: asyncio.Task[SwitchResult] | None = None
        self._deadline: asyncio.Timeout | None = None
        self._stopping = False
        self._generation = 0
        self._active: ActiveMethod
        self._publish(method)
        metrics.proposers(catalog().names)
        metrics.declare_switches()

    @property
    def active(self) -> ActiveMethod:
        """What drafts for requests that do not choose for themselves."""
        return self._active

    @property
    def busy(self) -> bool:
        """Whether a switch runs, or requests that one held are still to be admitted."""
        return self._attempt is not None or self.gate.holds

    @property
    def drain(self) -> Drain | None:
        """The drain that runs now, if one does."""
        attempt = self._attempt
        if attempt is None or attempt.mode != SwitchMode.DRAIN:
            return None
        return Drain(attempt.method, self.gate.held, attempt.took_ms, attempt.timeout_s)

    async def switch(
        self,
        asked: MethodRequest,
        mode: str = SwitchMode.IMMEDIATE,
        reason: str | None = None,
        *,
        timeout_s: float = DRAIN_TIMEOUT_S,
        caller: Caller = SERVER,
    ) -> SwitchResult:
        """Makes what is asked for the active method.

        A caller that is cancelled abandons a drain that still waits. It does not stop a swap
        that has begun: engine and gateway would disagree.

        Raises:
            SelectionError: an unknown mode or proposer, or a k too large; nothing changed.
            SwitchInProgress, ProposerQuarantined: not now; nothing changed.
            DrainTimeout, DrainStopped: requests did not end in time; nothing changed.
            EngineError: the engine failed; the old method stays active.
        """
        attempt = self._prepare(asked, mode, timeout_s, reason, caller)
        try:
            await self._fence(attempt)
        except BaseException as error:
            timed_out = isinstance(error, DrainTimeout)
            outcome = SwitchOutcome.TIMED_OUT if timed_out else SwitchOutcome.ABANDONED
            self._release(attempt, outcome, error)
            raise
        self._swapping = asyncio.create_task(self._swap(attempt))
        return await asyncio.shield(self._swapping)

    def stop(self) -> None:
        """The server stops: a drain that waits is given up, and what it held goes on."""
        self._stopping = True
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(0)

    def _prepare(
        self, asked: MethodRequest, mode: str, timeout_s: float, reason: str | None, caller: Caller
    ) -> _Attempt:
        try:
            switch_mode = SwitchMode(mode)
        except ValueError:
            known = ", ".join(SwitchMode)
            raise SelectionError(f"mode must be one of {known}", "mode", "unknown_mode") from None
        catalog = self._catalog()
        method = resolve(asked, catalog)
        previous = self._active.spec_method
        begun = time.perf_counter()
        attempt = _Attempt(
            caller, method, previous, switch_mode, timeout_s, reason, time.time(), begun
        )
        if self._attempt is not None:
            refusal = SwitchInProgress()
            self._record(attempt, SwitchOutcome.REFUSED, refusal)
            raise refusal
        if method.proposer in catalog.quarantined:
            quarantined = ProposerQuarantined(method.proposer)
            self._record(attempt, SwitchOutcome.REFUSED, quarantined)
            raise quarantined
        if failure := self._engine.failure:
            self._record(attempt, SwitchOutcome.FAILED, failure)
            raise failure
        self._attempt = attempt
        return attempt

    async def _fence(self, attempt: _Attempt) -> None:
        """Holds what comes and waits for what was admitted, if the mode is to drain."""
        if attempt.mode != SwitchMode.DRAIN:
            return
        self.gate.close()
        try:
            async with asyncio.timeout(attempt.timeout_s) as self._deadline:
                if self._stopping:
                    raise DrainStopped
                await self.in_flight.emptied()
        except TimeoutError:
            if self._stopping:
                raise DrainStopped from None
            raise DrainTimeout(attempt.timeout_s, len(self.in_flight)) from None
        finally:
            self._deadline = None

    async def _swap(self, attempt: _Attempt) -> SwitchResult:
        # A failed swap uses its number up too: the engine may have seen it.
        self._generation += 1
        generation, method = self._generation, attempt.method
        immediate = attempt.mode == SwitchMode.IMMEDIATE
        try:
            await self._engine.switch(Switch(method, generation), running=immediate)
        except BaseException as error:
            # Were it applied after all, later requests must not look older than it.
            self._active = replace(self._active, epoch=generation)
            self._release(attempt, SwitchOutcome.FAILED, error, generation)
            raise
        if immediate:
            self.in_flight.move_unpinned(method.proposer)
        self._publish(method)
        record = self._release(attempt, SwitchOutcome.SWITCHED, None, generation)
        return SwitchResult(
            record.previous, method, record.mode, generation, len(self.in_flight), record.took_ms
        )

    def _release(
        self,
        attempt: _Attempt,
        outcome: SwitchOutcome,
        error: BaseException | None,
        generation: int | None = None,
    ) -> AuditRecord:
        """Ends a switch: records it, and lets go on what a drain held."""
        record = self._record(attempt, outcome, error, generation)
        self._attempt = None
        self.gate.open()
        return record

    def _record(
        self,
        attempt: _Attempt,
        outcome: SwitchOutcome,
        error: BaseException | None,
        generation: int | None = None,
    ) -> AuditRecord:
        record = AuditRecord(
            when=attempt.when,
            caller=attempt.caller,
            what="switch_spec_method",
            previous=attempt.previous,
            to=attempt.method,
            mode=attempt.mode,
            reason=attempt.reason,
            outcome=outcome,
            error=None if error is None else str(error) or type(error).__name__,
            generation=generation,
            in_flight=len(self.in_flight),
            took_ms=attempt.took_ms,
        )
        swapped_s = None if generation is None else record.took_ms / 1e3
        self._metrics.switched(attempt.mode, outcome, swapped_s)
        self._audit.add(record)
        return record

    def _publish(self, method: SpecMethod) -> None:
        self._active = ActiveMethod(method, method.proposer, self._generation, time.time())
        self._metrics.spec_method(method.proposer)
