"""The replicas of one deployment as a fleet, of which each can run a switch.

Serve carries a call to all replicas, or to one that it chooses. Nothing here imports Ray.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import structlog
from prometheus_client import Metric

from server.control.switching.errors import to_refusal
from server.errors import Unavailable
from server.fleet.desired import DesiredState, next_state
from server.fleet.follower import Follower
from server.fleet.http_fleet import CALL_S, limit_s
from server.fleet.member import Member
from server.fleet.replica import Checked, FleetSwitch, Obstacle, ReplicaState, Way
from server.ray_serve.user_config import UserConfig, UserConfigError
from server.routes.metrics import with_engine
from server.state import AppState

POLL_S = 5.0
"""Mean seconds between two questions to another replica.

Serve calls no replica that starts, or that it reconfigures, so these miss a switch.
"""

START_S = 5.0
"""How long a replica that starts waits until another one answers, in seconds.

Serve tells it of the others a moment after its start. The first of a deployment waits in vain.
"""

log = structlog.get_logger(__name__)


class ServeFleet:
    """A replica, and all replicas as it reaches them; `replica.Fleet`.

    The calls to all raise `Unavailable` if one that lives does not answer in time.

    Args:
        name: of the replica.
        handle: Serve's handle of the deployment, whose `fleet_call` is `call` of each replica.
    """

    def __init__(self, name: str, state: AppState, handle: Any) -> None:
        self.name = name
        self._state = state
        self._handle = handle
        self._follower: Follower | None = None

    @property
    def member(self) -> Member:
        """The part of this replica, once its engine has started."""
        assert self._state.runtime is not None
        return self._state.runtime.fleet

    async def check(self, fleet_switch: FleetSwitch) -> Mapping[str, Checked | Obstacle]:
        """See `Member.check`."""
        return await self._call_all(CALL_S, "check", fleet_switch)

    async def set(self, desired: DesiredState, way: Way) -> Mapping[str, ReplicaState | Obstacle]:
        """See `Member.set`."""
        return await self._call_all(limit_s(way), "set", desired, way)

    async def states(self) -> Mapping[str, ReplicaState]:
        """What every replica has that can tell."""
        return _without_obstacles(await self._call_all(CALL_S, "state"))

    async def metrics(self) -> Mapping[str, list[Metric]]:
        """The metrics of every replica that can tell."""
        return _without_obstacles(await self._call_all(CALL_S, "metrics"))

    async def _call_all(self, limit_s: float, method: str, *arguments: Any) -> dict[str, Any]:
        try:
            calls = self._handle.broadcast("fleet_call", method, *arguments)
            answers = await calls.results_async(timeout_s=limit_s, return_exceptions=True)
        except Exception as error:
            log.warning("fleet_unavailable", error=str(error) or type(error).__name__)
            message = "The replicas do not all answer; what they were told may have been done."
            raise Unavailable(message, "fleet_unavailable", 1) from None
        # Of one that has died there is only an error: Serve starts another in its place.
        return dict(answer for answer in answers if not isinstance(answer, BaseException))

    async def call(self, method: str, *arguments: Any) -> tuple[str, Any]:
        """Answers a call to all: the replica's name, and what it returns, or why it refuses."""
        try:
            match method:
                case "check":
                    return self.name, self.member.check(*arguments)
                case "set":
                    return self.name, await self.member.set(*arguments)
                case "metrics":
                    return self.name, list((await with_engine(self._state)).registry.collect())
                case _:
                    return self.name, self.member.state()
        except Exception as error:
            refusal = to_refusal(error)
            if refusal.status == 500:
                log.exception("fleet_call_failed", method=method)
            return self.name, Obstacle(refusal.message, refusal.status, refusal.code)

    async def begin(self) -> None:
        """Takes what the others have, and follows them from then on."""
        self._follower = Follower(self.member, self._ask, POLL_S)
        until = time.monotonic() + START_S
        while not await self._follower.learn() and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        self._follower.start()

    async def end(self) -> None:
        """Ends the questions. Safe to call without `begin`."""
        if self._follower is not None:
            await self._follower.close()

    async def _ask(self, max_replicas: int) -> list[DesiredState | None]:
        """See `follower.Ask`."""
        try:
            if max_replicas > 1:
                return [state.fleet.desired for state in (await self.states()).values()]
            _, state = await self._handle.fleet_call.remote("state")
            return [state.fleet.desired]
        except Exception as error:
            log.debug("fleet_replica_failed", error=str(error))
            return []

    async def desired(self) -> DesiredState | None:
        """The largest state that a replica knows; this one takes it."""
        assert self._follower is not None
        await self._follower.learn()
        return self.member.desired

    async def declare(self, config: UserConfig) -> None:
        """Goes to the state of a `user_config`, unless the fleet has had its revision before.

        Every replica that gets it does this for itself, with the same result. Raises
        `UserConfigError` for a method or a policy that this replica cannot have.
        """
        current = await self.desired()
        if current is not None and config.revision <= current.revision:
            return
        fleet_switch = config.fleet_switch()
        check = self.member.check(fleet_switch)
        if isinstance(check.to, Obstacle):
            raise UserConfigError(check.to.message)
        desired = next_state(current, check.to, fleet_switch.policies or {}, config.revision)
        state = await self.member.set(desired, fleet_switch.way)
        log.info("user_config_applied", revision=config.revision, lag=state.fleet.lag)


def _without_obstacles(answers: Mapping[str, Any]) -> dict[str, Any]:
    """The answers without those of replicas that failed, which are in the log."""
    return {name: answer for name, answer in answers.items() if not isinstance(answer, Obstacle)}
