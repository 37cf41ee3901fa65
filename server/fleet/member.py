"""The part of one server in its fleet: it knows the state that it should have, and goes to it."""

import asyncio

import structlog

from engine_adapter.policies.parameters import PolicyError
from server.control.admin.policy_admin import PolicyAdmin
from server.control.method_names import MethodRequest, SelectionError
from server.control.records import SpecMethodBody, SwitchResult
from server.control.switching.errors import to_refusal
from server.control.switching.switcher import Switcher
from server.control.types import SERVER, Caller
from server.fleet.desired import DesiredState, rank_of
from server.fleet.replica import (
    FOLLOWING,
    Checked,
    FleetStatus,
    FleetSwitch,
    Obstacle,
    ReplicaState,
    Way,
)

RETRY_S = 1.0
"""Seconds until a server that lags tries again; twice as many after every try."""

MAX_RETRY_S = 60.0
"""The most seconds between two tries."""

SWITCHING = Obstacle("the switch to it has not ended", 409, "switch_in_progress")
"""Why a server does not have its state before the first try has ended."""

log = structlog.get_logger(__name__)


class Member:
    """A server as a replica of a fleet. Lives on the event loop.

    It keeps the largest state that it was told, whether or not it can have it. While it does not
    have it, it *lags*, and tries again. A switch of this server alone leaves the state and its
    rank: it lasts until the next state.
    """

    def __init__(self, switcher: Switcher, policy_admin: PolicyAdmin) -> None:
        self._switcher = switcher
        self._policy_admin = policy_admin
        self._desired: DesiredState | None = None
        self._lag: Obstacle | None = None
        self._following: asyncio.Task[None] | None = None
        # The first try of the desired state: its switch, or `None`.
        self._first_try: asyncio.Future[SwitchResult | None] | None = None

    @property
    def desired(self) -> DesiredState | None:
        """The state that it should have; `None` before the first."""
        return self._desired

    def state(self, switch: SwitchResult | None = None) -> ReplicaState:
        """What the server has, after a switch that it was told to make."""
        active = SpecMethodBody.from_method(self._switcher.active.spec_method)
        return ReplicaState(active, switch, self.status())

    def status(self) -> FleetStatus:
        """What the server should have, and what it has."""
        return FleetStatus(
            self._switcher.active.fleet.generation,
            self._switcher.busy,
            self._desired,
            self._lag if self._lags else None,
        )

    def check(self, fleet_switch: FleetSwitch) -> Checked:
        """What the server would do with a switch of the fleet. Changes nothing."""
        request = MethodRequest(
            fleet_switch.speculative_model,
            fleet_switch.num_speculative_tokens,
            is_named=True,
            proposer_param="speculative_model",
            k_param="num_speculative_tokens",
        )
        target: SpecMethodBody | Obstacle
        try:
            self._policy_admin.check(fleet_switch.policies or {})
            target = SpecMethodBody.from_method(
                self._switcher.check(request, fleet_switch.way.mode)[0]
            )
        except (SelectionError, PolicyError) as error:
            target = _obstacle(error)
        active = SpecMethodBody.from_method(self._switcher.active.spec_method)
        return Checked(active, target, self.status())

    async def set(
        self, desired: DesiredState, way: Way = FOLLOWING, caller: Caller = SERVER
    ) -> ReplicaState:
        """Takes a state if it is above the server's own, and waits for the first try to have it.

        The same call again gets the same answer. A cancelled caller ends nothing. A larger state
        ends the drain of a smaller one.
        """
        rank, own_rank = desired.rank, rank_of(self._desired)
        if rank > own_rank or (rank == own_rank and self._is_between_tries):
            self._desired, self._lag = desired, SWITCHING
            self._first_try = first_try = asyncio.get_running_loop().create_future()
            work = self._follow(desired, way, caller, self._following, first_try)
            self._following = asyncio.create_task(work)
            self._following.add_done_callback(lambda _: _end(first_try))
        switch = None
        if rank >= own_rank and self._first_try is not None:
            switch = await asyncio.shield(self._first_try)
        return self.state(switch)

    async def close(self) -> None:
        """Ends the tries."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    @property
    def _lags(self) -> bool:
        return rank_of(self._desired) != self._switcher.active.fleet

    @property
    def _is_between_tries(self) -> bool:
        return self._lags and self._first_try is not None and self._first_try.done()

    async def _follow(
        self,
        desired: DesiredState,
        way: Way,
        caller: Caller,
        previous_task: "asyncio.Task[None] | None",
        first_try: "asyncio.Future[SwitchResult | None]",
    ) -> None:
        """Tries until the server has the state, after it has ended the tries of the one before."""
        if previous_task is not None:
            previous_task.cancel()
            await asyncio.wait([previous_task])
        await self._switcher.settled()
        first_try.set_result(await self._try(desired, way, caller, is_first=True))
        pause_s = RETRY_S
        while self._lags:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RETRY_S)
            await self._try(desired, FOLLOWING, SERVER, is_first=False)

    async def _try(
        self, desired: DesiredState, way: Way, caller: Caller, *, is_first: bool
    ) -> SwitchResult | None:
        """Takes the state, or notes why that is not possible now. The log has a reason once."""
        names = {"generation": desired.generation, "spec_method": desired.spec_method}
        try:
            result = await self._take(desired, way, caller, is_first=is_first)
        except Exception as error:
            lag, fault = _obstacle(error), to_refusal(error).status == 500
            if lag != self._lag:
                log.warning(
                    "fleet_lags", **names, reason=lag.message, exc_info=error if fault else None
                )
            self._lag = lag
            return None
        log.info("fleet_method_taken", **names)
        return result

    async def _take(
        self, desired: DesiredState, way: Way, caller: Caller, *, is_first: bool
    ) -> SwitchResult:
        request = desired.method_request
        _, obstacle = self._switcher.check(request, way.mode)
        # The first try leaves a record of its refusal, the others of their success only.
        if obstacle is not None and not is_first:
            raise obstacle
        if obstacle is None:
            await self._change_policies(desired, way, caller)
        return await self._switcher.switch(
            request,
            way.mode,
            way.reason,
            timeout_s=way.timeout_s,
            on_timeout=way.on_timeout,
            caller=caller,
            fleet=desired.rank,
        )

    async def _change_policies(self, desired: DesiredState, way: Way, caller: Caller) -> None:
        """Changes each policy; one that is refused here must not keep the method from changing.

        A state has the policies of earlier switches, too, and may name a proposer that is gone.
        """
        for name, parameters in desired.policies.items():
            try:
                await self._policy_admin.change(
                    {name: parameters}, None, way.reason, caller, unless_in_force=True
                )
            except PolicyError as error:
                log.warning(
                    "fleet_policy_refused", generation=desired.generation, reason=str(error)
                )


def _end(first_try: "asyncio.Future[SwitchResult | None]") -> None:
    """A try that was ended before it had an end has made no switch."""
    if not first_try.done():
        first_try.set_result(None)


def _obstacle(error: Exception) -> Obstacle:
    refusal = to_refusal(error)
    return Obstacle(refusal.message, refusal.status, refusal.code)
