"""The fleet's actor, and how the replicas reach it."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from server.fleet.replica import FleetReport, Order, ReplicaState
from server.ray_serve.attendance import FleetLost
from server.ray_serve.fleet import Fleet, FleetStatus
from server.ray_serve.remote_replica import Answer, Call
from server.telemetry.logs import configure_logs

NAMESPACE = "specgate"
"""Ray's namespace of the actors of fleets."""

REPLICAS_NAMESPACE = "serve"
"""Ray's namespace of Serve's own actors, replicas among them."""

EMPTY_S = 300.0
"""After how many seconds without a replica an actor ends: its deployment was deleted."""

REJOIN_S = 3.0
"""How long an actor waits for replicas of an earlier one before it switches, in seconds.

They try every `attendance.RETRY_S` seconds.
"""

_LOOK_S = 10.0


class FleetActor(Fleet):
    """The fleet as an actor of Ray. Its process ends when no replica has been there for a while."""

    def __init__(self) -> None:
        configure_logs("info", json=False, access=False)
        super().__init__(_is_alive, rejoin_s=REJOIN_S)
        self._ending: asyncio.Task[None] | None = None

    async def join(self, name: str, actor: str, state: ReplicaState, revision: int) -> ReplicaState:
        """See `Fleet.join`."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_when_empty())
        return await super().join(name, actor, state, revision)

    def process(self) -> int:
        """The id of its process."""
        return os.getpid()

    async def _end_when_empty(self) -> None:
        last = time.monotonic()
        while time.monotonic() - last < EMPTY_S:
            await asyncio.sleep(_LOOK_S)
            await self._forget_gone()
            if self.num_replicas:
                last = time.monotonic()
        ray.kill(ray.get_runtime_context().current_actor)


class RayFleet:
    """The fleet, as the replica `name` reaches it; see `attendance.FleetOfReplica`.

    Every method raises `FleetLost` if the actor does not answer. Its next call then reaches the
    actor that Ray has started again, or starts one.

    Args:
        fleet: the name of the fleet.
        name: of the replica.
        actor: the name of the replica's actor.
    """

    def __init__(self, fleet: str, name: str, actor: str) -> None:
        self._fleet = fleet
        self._name = name
        self._actor = actor
        self._handle: Any = None

    async def join(self, state: ReplicaState, revision: int) -> ReplicaState:
        """See `Fleet.join`."""
        who = (self._name, self._actor)
        in_force: ReplicaState = await self._call(lambda a: a.join.remote(*who, state, revision))
        return in_force

    async def leave(self) -> None:
        """See `Fleet.leave`."""
        await self._call(lambda a: a.leave.remote(self._name))

    async def collect(self) -> list[Call] | None:
        """See `Fleet.collect`."""
        calls: list[Call] | None = await self._call(lambda a: a.collect.remote(self._name))
        return calls

    async def answer(self, answer: Answer) -> None:
        """See `Fleet.answer`."""
        await self._call(lambda a: a.answer.remote(self._name, answer))

    async def switch(self, order: Order) -> FleetReport | None:
        """See `Fleet.switch`. If its caller is cancelled, the switch is rolled back."""
        report: FleetReport | None = await self._call(lambda a: a.switch.remote(order))
        return report

    async def set_policies(self, order: Order) -> FleetReport | None:
        """See `Fleet.set_policies`."""
        report: FleetReport | None = await self._call(lambda a: a.set_policies.remote(order))
        return report

    async def declare(self, revision: int, order: Order) -> FleetReport | None:
        """See `Fleet.declare`."""
        report: FleetReport | None = await self._call(lambda a: a.declare.remote(revision, order))
        return report

    async def status(self) -> FleetStatus:
        """See `Fleet.status`."""
        status: FleetStatus = await self._call(lambda a: a.status.remote())
        return status

    async def metrics(self) -> dict[str, str]:
        """See `Fleet.metrics`."""
        texts: dict[str, str] = await self._call(lambda a: a.metrics.remote())
        return texts

    async def _call(self, begin: Callable[[Any], Any]) -> Any:
        try:
            if self._handle is None:
                self._handle = await asyncio.to_thread(_actor, self._fleet)
            result = begin(self._handle)
            try:
                return await result
            except asyncio.CancelledError:
                ray.cancel(result)
                raise
        except RayTaskError:
            raise  # what the fleet's own code raised
        except (RayError, ValueError) as error:
            self._handle = None
            raise FleetLost(str(error)) from error


def _actor(fleet: str) -> Any:
    """The actor of a fleet, which is started if there is none."""
    options = {
        "name": fleet,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "num_cpus": 0,
        # Every replica waits in `collect`.
        "max_concurrency": 100_000,
    }
    return ray.remote(FleetActor).options(**options).remote()


async def _is_alive(actor: str) -> bool:
    """Whether Ray knows a replica's actor to live; an actor whose process has ended has no name."""
    try:
        await asyncio.to_thread(ray.get_actor, actor, namespace=REPLICAS_NAMESPACE)
    except ValueError:
        return False
    except RayError:
        return True  # Ray itself does not answer
    return True
