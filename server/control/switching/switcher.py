"""The active spec method, and the switches that change it, one at a time.

A switch has four phases: prepare (check that it is possible and the only one), fence (a drain
holds new requests and waits for the admitted ones), swap (the engine), release. The engine applies
an `immediate` switch before the method is published, so no request carries the number of a switch
that the engine has not applied. A switch that fails, or does not get past its fence, leaves the old
method. A switch's number is `epoch` in the code and `generation` in the API.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from engine_adapter.seam.errors import EngineDead
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.types import SpecMethod, Switch
from server.control.admin.audit import Audit
from server.control.admission.slots import Slots
from server.control.method_names import LoadedProposers, MethodRequest, SelectionError
from server.control.records import Drain, SpecMethodBody, SwitchRecord, SwitchResult
from server.control.switching.attempt import Attempt
from server.control.switching.errors import (
    DrainStopped,
    DrainTimeout,
    ProposerQuarantined,
    SwitchInProgress,
)
from server.control.switching.in_flight import InFlight
from server.control.switching.selection import ActiveMethod, absence, resolve
from server.control.types import (
    ABORT_S,
    DRAIN_TIMEOUT_S,
    NO_FLEET,
    SERVER,
    Caller,
    FleetRank,
    OnTimeout,
    SwitchMode,
    SwitchOutcome,
)
from server.errors import AuditUnavailable, DrainAborted
from server.telemetry.metrics import Metrics


class Switcher:
    """Holds the active method and changes it. Lives on the event loop; nothing here blocks.

    Args:
        loaded_proposers: returns the proposers that are loaded at the time of the call.
        initial: the method at start, under any name that a switch accepts.
        slots: what every request waits for; a drain closes them to requests that have not begun.

    Attributes:
        in_flight: the admitted requests that have not ended.

    Raises:
        SelectionError: `initial` names no loaded proposer.
    """

    def __init__(
        self,
        engine: Engine,
        loaded_proposers: Callable[[], LoadedProposers],
        metrics: Metrics,
        initial: str,
        audit: Audit,
        slots: Slots,
    ) -> None:
        method = resolve(
            MethodRequest(initial, None, True, proposer_param="spec_method"), loaded_proposers()
        )
        self.in_flight = InFlight()
        self._slots = slots
        self._engine = engine
        self._loaded_proposers = loaded_proposers
        self._metrics = metrics
        self._audit = audit
        self._attempt: Attempt | None = None
        self._swapping: asyncio.Task[SwitchResult] | None = None
        self._deadline: asyncio.Timeout | None = None
        self._stopping = False
        self._epoch = 0
        self._active: ActiveMethod
        self._publish(method, NO_FLEET)
        metrics.declare_proposers(loaded_proposers().names)
        metrics.declare_switches()

    @property
    def active(self) -> ActiveMethod:
        """The method of requests that do not select one."""
        return self._active

    @property
    def busy(self) -> bool:
        """Whether a switch runs."""
        return self._attempt is not None

    @property
    def drain(self) -> Drain | None:
        """The running drain, if there is one."""
        attempt = self._attempt
        if attempt is None or self._slots.is_open:
            return None
        return Drain(
            SpecMethodBody.from_method(attempt.method),
            self._slots.num_queued,
            attempt.took_ms,
            attempt.timeout_s,
            attempt.on_timeout,
        )

    async def switch(
        self,
        request: MethodRequest,
        mode: str = SwitchMode.IMMEDIATE,
        reason: str | None = None,
        *,
        timeout_s: float = DRAIN_TIMEOUT_S,
        on_timeout: OnTimeout = OnTimeout.FAIL,
        caller: Caller = SERVER,
        fleet: FleetRank | None = None,
    ) -> SwitchResult:
        """Makes the requested method the active one.

        `timeout_s` and `on_timeout` are a drain's; `fleet` is the rank of the fleet's state that
        asks for it.

        Cancelling the caller abandons a drain that still waits. It does not stop a swap that has
        begun: engine and gateway would disagree.

        Raises:
            SelectionError: an unknown mode or proposer, or a k too large; nothing changed.
            SwitchInProgress, ProposerQuarantined: not possible now; nothing changed.
            AuditUnavailable: its record is required and cannot be written; nothing changed.
            DrainTimeout, DrainStopped: requests did not end in time; the old method stays. Those
                that the drain has aborted are lost.
            EngineError: the engine failed; the old method stays active.
        """
        switch_mode, method = self._resolved(request, mode)
        attempt = Attempt(
            caller,
            method,
            self._active.spec_method,
            switch_mode,
            timeout_s,
            on_timeout,
            reason,
            when=time.time(),
            start_s=time.perf_counter(),
            moves=switch_mode == SwitchMode.IMMEDIATE,
            fleet=fleet,
        )
        self._begin(attempt)
        return await self._make(attempt)

    async def _make(self, attempt: Attempt) -> SwitchResult:
        """Makes a switch that has begun, and ends it."""
        try:
            await self._audit.ensure_written()
            attempt = await self._fence(attempt)
        except BaseException as error:
            self._release(self._attempt or attempt, _outcome_before_swap(error), error)
            raise
        # An unload that had begun before may have ended meanwhile.
        method = attempt.method
        refusal = self._inability(method) or absence(method, self._loaded_proposers())
        if refusal is not None:
            self._release(attempt, _outcome_of(refusal), refusal)
            raise refusal
        self._swapping = asyncio.create_task(self._swap(attempt))
        return await asyncio.shield(self._swapping)

    async def settled(self) -> None:
        """Waits for a swap that has begun, also for one whose caller is gone."""
        if self._swapping is not None:
            await asyncio.wait([self._swapping])

    def check(self, request: MethodRequest, mode: str) -> tuple[SpecMethod, Exception | None]:
        """What a switch would change to, and why none can begin now. Leaves no record.

        Raises `SelectionError`.
        """
        _, method = self._resolved(request, mode)
        return method, self._refusal(method)

    def stop(self) -> None:
        """Abandons a drain that waits, because the server stops. Held requests continue."""
        self._stopping = True
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(0)

    def _resolved(self, request: MethodRequest, mode: str) -> tuple[SwitchMode, SpecMethod]:
        """The mode and the method. Raises `SelectionError`."""
        try:
            switch_mode = SwitchMode(mode)
        except ValueError:
            modes = ", ".join(SwitchMode)
            raise SelectionError(f"mode must be one of {modes}", "mode", "unknown_mode") from None
        return switch_mode, resolve(request, self._loaded_proposers())

    def _begin(self, attempt: Attempt) -> None:
        """From here on no other switch begins until `_release`. Raises why it cannot begin."""
        refusal = self._refusal(attempt.method) or self._audit.intend(attempt.intent())
        if refusal is not None:
            self._record(attempt, _outcome_of(refusal), refusal)
            raise refusal
        self._attempt = attempt

    def _refusal(self, method: SpecMethod) -> Exception | None:
        """Why no switch to `method` can begin now."""
        if self._attempt is not None:
            return SwitchInProgress()
        return self._inability(method)

    def _inability(self, method: SpecMethod) -> Exception | None:
        """Why no switch to `method` can be made now, whether or not another runs."""
        if method.proposer in self._loaded_proposers().quarantined:
            return ProposerQuarantined(method.proposer)
        return self._engine.failure

    async def _fence(self, attempt: Attempt) -> Attempt:
        """In `drain` mode, holds new requests and waits for the admitted ones to end.

        Returns the attempt with what became of those that did not end in time.
        """
        if attempt.mode != SwitchMode.DRAIN:
            return attempt
        self._slots.close()
        try:
            await self._emptied(attempt.timeout_s, attempt)
        except DrainTimeout:
            if attempt.on_timeout == OnTimeout.MOVE:
                return replace(attempt, moves=True)
            if attempt.on_timeout == OnTimeout.ABORT:
                attempt = replace(attempt, aborted=self.in_flight.abort(DrainAborted()))
                # For the record, if even that takes too long.
                self._attempt = attempt
                await self._emptied(ABORT_S, attempt)
                return attempt
            raise
        return attempt

    async def _emptied(self, timeout_s: float, attempt: Attempt) -> None:
        """Waits until no request is in flight. Raises `DrainTimeout`, `DrainStopped`."""
        try:
            async with asyncio.timeout(timeout_s) as self._deadline:
                if self._stopping:
                    raise DrainStopped
                await self.in_flight.emptied()
        except TimeoutError:
            if self._stopping:
                raise DrainStopped from None
            remaining = len(self.in_flight)
            raise DrainTimeout(attempt.timeout_s, remaining, attempt.aborted) from None
        finally:
            self._deadline = None

    async def _swap(self, attempt: Attempt) -> SwitchResult:
        # A failed swap uses its number too: the engine may have seen it.
        self._epoch += 1
        epoch, method = self._epoch, attempt.method
        try:
            await self._engine.switch(Switch(method, epoch), running=attempt.moves)
        except BaseException as error:
            # The engine may have applied it, and later requests must not look older than it.
            self._active = replace(self._active, epoch=epoch)
            self._release(attempt, SwitchOutcome.FAILED, error, epoch)
            raise
        if attempt.moves:
            self.in_flight.move_unpinned(method.proposer)
        self._publish(method, attempt.fleet)
        record = self._release(attempt, SwitchOutcome.SWITCHED, None, epoch)
        return SwitchResult(
            record.previous,
            record.to,
            record.mode,
            epoch,
            self._active.fleet.generation,
            len(self.in_flight),
            attempt.aborted,
            record.took_ms,
        )

    def _release(
        self,
        attempt: Attempt,
        outcome: SwitchOutcome,
        error: BaseException | None,
        epoch: int | None = None,
    ) -> SwitchRecord:
        """Ends a switch: records it, and lets the held requests continue."""
        record = self._record(attempt, outcome, error, epoch)
        self._attempt = None
        self._slots.open()
        return record

    def _record(
        self,
        attempt: Attempt,
        outcome: SwitchOutcome,
        error: BaseException | None,
        epoch: int | None = None,
    ) -> SwitchRecord:
        record = attempt.record(outcome, error, epoch, len(self.in_flight))
        took_s = None if epoch is None else record.took_ms / 1e3
        self._metrics.count_switch(attempt.mode, outcome, took_s)
        self._audit.add(record)
        return record

    def _publish(self, method: SpecMethod, fleet: FleetRank | None = None) -> None:
        fleet = fleet or self._active.fleet
        self._active = ActiveMethod(method, method.proposer, self._epoch, time.time(), fleet)
        self._metrics.set_spec_method(method.proposer)
        self._metrics.set_fleet_generation(fleet.generation)


def _outcome_before_swap(error: BaseException) -> SwitchOutcome:
    match error:
        case AuditUnavailable():
            return SwitchOutcome.REFUSED
        case DrainTimeout():
            return SwitchOutcome.TIMED_OUT
        case _:
            return SwitchOutcome.ABANDONED


def _outcome_of(refusal: Exception) -> SwitchOutcome:
    has_died = isinstance(refusal, EngineDead)
    return SwitchOutcome.FAILED if has_died else SwitchOutcome.REFUSED
