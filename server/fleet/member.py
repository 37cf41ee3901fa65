"""The part of one server in the switches of its fleet.

It is reserved for at most one fleet switch at a time. The reservation is an attempt of the
switcher that has been prepared and not committed, so that no other switch begins meanwhile, and no
proposer is unloaded. It ends with its lease.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine_adapter.cancellation import ended, to_its_end
from server.control.attempt import Attempt
from server.control.errors import GivenUp, NotPrepared, StaleGeneration
from server.control.method_names import MethodRequest
from server.control.policy_admin import PolicyAdmin
from server.control.records import SpecMethodBody, SwitchResult
from server.control.switcher import Switcher
from server.control.types import SERVER, Caller, SwitchMode
from server.fleet.held import Held
from server.fleet.replica import Order, Prepared, ReplicaState


class Member:
    """A server as a replica of a fleet. Lives on the event loop; see `replica.Replica`.

    Besides what its methods say, they raise what `Switcher.switch` and `PolicyAdmin.change` raise.
    """

    def __init__(self, switcher: Switcher, policy_admin: PolicyAdmin) -> None:
        self._switcher = switcher
        self._policy_admin = policy_admin
        self._held: Held | None = None
        self._policies: dict[str, Mapping[str, Any]] = {}
        # The last fleet switch that was rolled back here, and the policies that it has left alone.
        self._kept: tuple[str, tuple[str, ...]] = ("", ())

    def state(self) -> ReplicaState:
        """What the server has now."""
        active = self._switcher.active
        return ReplicaState(
            active.fleet_generation,
            SpecMethodBody.of(active.spec_method),
            self._switcher.busy,
            dict(self._policies),
        )

    def prepare(
        self, switch_id: str, order: Order, lease_s: float, caller: Caller = SERVER
    ) -> Prepared:
        """Checks that the switch is possible and reserves the server for it.

        A second call for the same switch gives it a new lease.

        Raises:
            PolicyError: the order's parameters of a policy cannot work.
        """
        held = self._held
        if held is not None and held.switch_id == switch_id and held.committing is None:
            self._begin_lease(held, lease_s)
            return held.prepared
        policies = self._policy_admin.check(order.policies or {})
        request = MethodRequest(
            order.speculative_model,
            order.num_speculative_tokens,
            is_named=True,
            proposer_param="speculative_model",
            k_param="num_speculative_tokens",
        )
        attempt = self._switcher.prepare(
            request,
            order.mode,
            order.reason,
            timeout_s=order.timeout_s,
            on_timeout=order.on_timeout,
            caller=caller,
        )
        self._held = self._holding(switch_id, attempt, policies, caller)
        self._begin_lease(self._held, lease_s)
        return self._held.prepared

    def _holding(
        self,
        switch_id: str,
        attempt: Attempt,
        policies: Mapping[str, Mapping[str, Any]],
        caller: Caller,
    ) -> Held:
        now = self.state()
        prepared = Prepared(now.fleet_generation, now.active, SpecMethodBody.of(attempt.method))
        return Held(switch_id, caller, prepared, attempt, policies)

    async def commit(self, switch_id: str, generation: int) -> SwitchResult:
        """Makes the switch that was prepared.

        A second call with the same number gets the same result. If all its callers are cancelled,
        a drain is abandoned.

        Raises:
            NotPrepared: it is not reserved for this switch, or its reservation has ended; also for
                a commit that is rolled back, or abandoned, before it has ended.
            StaleGeneration: the number is not above the server's; the reservation ends.
        """
        held = self._held
        if held is None or held.switch_id != switch_id or held.undoing is not None:
            raise NotPrepared
        if held.committing is not None:
            if held.generation != generation:
                raise NotPrepared
            return await self._result(held, held.committing)
        own = self._switcher.active.fleet_generation
        if generation <= own:
            stale = StaleGeneration(generation, own)
            self._give_up(held, stale)
            raise stale
        held.stop_lease()
        held.generation = generation
        held.committing = asyncio.create_task(self._apply(held))
        return await self._result(held, held.committing)

    async def _result(self, held: Held, committing: "asyncio.Task[SwitchResult]") -> SwitchResult:
        """Waits for a commit, and cancels it if its last caller is cancelled."""
        held.num_waiting += 1
        try:
            await asyncio.wait([committing])
        finally:
            held.num_waiting -= 1
            if not held.num_waiting and not committing.done():
                committing.cancel()
                await asyncio.wait([committing])
        if held.undoing is not None or committing.cancelled():
            raise NotPrepared
        return committing.result()

    async def rollback(
        self, switch_id: str, generation: int | None, caller: Caller = SERVER
    ) -> ReplicaState:
        """Ends the reservation, or restores what was before the commit; see `replica.Replica`.

        Continues if its caller is cancelled. A second call meanwhile gets the same answer.
        """
        held = self._held
        if held is None or held.switch_id != switch_id:
            return self._after(switch_id)
        if held.undoing is None or held.undoing.done():
            held.undoing = asyncio.create_task(self._undo(held, generation, caller))
        return await asyncio.shield(held.undoing)

    async def end_switch(self) -> None:
        """Ends what a coordinator that is gone has begun and not finished, in any phase.

        A reservation is released, a commit that has not ended is rolled back, and a roll back that
        runs is waited for. A commit that has ended stays. Raises what `rollback` raises.
        """
        held = self._held
        if held is None:
            return
        if held.undoing is not None and not held.undoing.done():
            await asyncio.wait([held.undoing])
        elif held.committing is None or not held.committing.done():
            await self.rollback(held.switch_id, None)

    def _after(self, switch_id: str) -> ReplicaState:
        """The state after the roll back of a switch, also for a caller that asks again."""
        undone, kept = self._kept
        return replace(self.state(), kept_policies=kept if undone == switch_id else ())

    async def _undo(self, held: Held, generation: int | None, caller: Caller) -> ReplicaState:
        kept: tuple[str, ...] = ()
        if held.committing is None:
            self._give_up(held, GivenUp())
        else:
            # This task began later, so the commit has begun and ends its attempt by itself.
            held.committing.cancel()
            await asyncio.wait([held.committing])
            kept = await self._restore(held, generation, caller)
        self._kept = (held.switch_id, kept)
        if generation is not None:
            self._switcher.take_fleet_generation(generation)
        if self._held is held:
            self._held = None
        return self._after(held.switch_id)

    async def adopt(self, state: ReplicaState) -> bool:
        """Takes the method and the policies of another replica, if its number is higher.

        Requests in flight keep their method. Does nothing while a switch runs or is prepared here:
        it may be the one that the other replica has made already. Returns whether anything was
        taken.
        """
        if self._switcher.busy:
            return False
        if state.fleet_generation <= self._switcher.active.fleet_generation:
            return False
        method = state.active
        request = MethodRequest(method.spec_method, method.num_speculative_tokens or None, True)
        policies = self._policy_admin.check(state.policies)
        attempt = self._switcher.prepare(request, SwitchMode.NEW_REQUESTS, "as the fleet has it")
        taken = self._holding("", attempt, policies, SERVER)
        taken.generation = state.fleet_generation
        await to_its_end(self._apply(taken))
        return True

    async def _apply(self, held: Held) -> SwitchResult:
        """Sets the policies, then the method; if that fails, the policies as they were.

        If it is cancelled, a drain is abandoned. A change that the engine has begun ends first;
        if that is the change of the method, the switch has happened, and its result is returned.
        """
        try:
            await self._set_policies(held)
        except BaseException:
            try:
                await to_its_end(self._take_back(held, held.caller))
            finally:
                self._switcher.abandon(held.attempt, GivenUp())
            raise
        try:
            result = await self._switcher.commit(held.attempt, held.generation)
        except BaseException:
            settling = asyncio.create_task(self._settled(held))
            await ended(settling)
            if (settled := settling.result()) is None:
                raise
            result = settled
        self._policies |= held.policies
        return result

    async def _set_policies(self, held: Held) -> None:
        """If it is cancelled, it raises that after the change, which is noted in `held`."""
        if held.policies:
            change = self._policy_admin.change(
                held.policies, None, held.attempt.reason, held.caller
            )
            changing = asyncio.create_task(change)
            cancellation = await ended(changing)
            held.changed = changing.result()
            if cancellation is not None:
                raise cancellation

    async def _take_back(self, held: Held, caller: Caller) -> tuple[str, ...]:
        """Sets the policies as they were; returns those that were changed here since."""
        if held.changed is None:
            return ()
        return await self._policy_admin.take_back(held.changed, held.attempt.reason, caller)

    async def _settled(self, held: Held) -> SwitchResult | None:
        """The result of a swap that has begun; otherwise sets the policies as they were."""
        result = await self._switcher.settled()
        if result is not None and result.fleet_generation != held.generation:
            result = None  # of another switch, which has begun since
        if result is None:
            await self._take_back(held, held.caller)
        return result

    async def _restore(self, held: Held, generation: int | None, caller: Caller) -> tuple[str, ...]:
        """Sets the policies as they were, and switches back if the switch has happened.

        What was changed at this server alone after the commit stays: its method, and each policy.
        Requests keep their method unless the switch had changed theirs. Returns the policies that
        stay.
        """
        # First, so that no other switch begins while the policies are set.
        attempt = self._way_back(held, caller)
        try:
            kept = await self._take_back(held, caller)
        except BaseException:
            if attempt is not None:
                self._switcher.abandon(attempt, GivenUp())
            raise
        if held.changed is not None:
            self._policies |= {n: p for n, p in held.changed.before.items() if n in self._policies}
        if attempt is not None:
            await self._switcher.commit(attempt, max(generation or 0, held.generation + 1))
        return kept

    def _way_back(self, held: Held, caller: Caller) -> Attempt | None:
        """Prepares the switch to the method of before; `None` if there is nothing to undo."""
        order, method, active = held.attempt, held.prepared.active, self._switcher.active
        # A failed commit has left its number unused.
        if (active.fleet_generation, active.spec_method) != (held.generation, order.method):
            return None
        mode = order.mode if order.mode == SwitchMode.IMMEDIATE else SwitchMode.NEW_REQUESTS
        request = MethodRequest(method.spec_method, method.num_speculative_tokens or None, True)
        return self._switcher.prepare(request, mode, order.reason, caller=caller, is_undo=True)

    def _begin_lease(self, held: Held, lease_s: float) -> None:
        held.stop_lease()
        loop = asyncio.get_running_loop()
        held.lease = loop.call_later(lease_s, self._end_lease, held, lease_s)

    def _give_up(self, held: Held, reason: Exception) -> None:
        held.stop_lease()
        self._held = None
        self._switcher.abandon(held.attempt, reason)

    def _end_lease(self, held: Held, lease_s: float) -> None:
        if self._held is held and held.committing is None:
            self._give_up(held, GivenUp(lease_s))
