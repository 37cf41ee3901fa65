"""A fleet in the test's own process: gateways on fake engines whose actor is an object."""

import asyncio
from typing import Any

from server.fleet.replica import FleetReport, Order, ReplicaState
from server.ray_serve.attendance import Attendance, FleetLost
from server.ray_serve.fleet import Fleet
from server.ray_serve.remote_replica import Answer, Call
from tests.server.gateway import Gateway

NAMES = ("a", "b", "c", "d")


class House:
    """A fleet that can die, and replicas that can.

    Attributes:
        dead: the replicas whose process counts as ended.
        noticed: the replicas that have found no fleet since it was lost.
    """

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.noticed: set[str] = set()
        self.fleet: Fleet | None = None
        self.gateways: dict[str, Gateway] = {}
        self.attendances: dict[str, Attendance] = {}
        self.new_fleet()

    async def add(self, name: str, gateway: Gateway) -> Attendance:
        """Lets a gateway join as the replica `name`."""

        async def metrics() -> str:
            return "# HELP m of a replica\n# TYPE m gauge\nm 1.0\n"

        attendance = Attendance(name, gateway.runtime.fleet, Door(self, name), metrics)
        await attendance.begin()
        self.gateways[name] = gateway
        self.attendances[name] = attendance
        return attendance

    def lose_fleet(self) -> None:
        """Ends the fleet's process."""
        self.noticed.clear()
        self.fleet = None

    def new_fleet(self, rejoin_s: float = 0.0) -> None:
        """Starts the fleet's next process, which knows nothing."""

        async def is_alive(actor: str) -> bool:
            # A fleet whose process has ended waits for no replica: what it has begun ends too.
            return self.fleet is fleet and actor not in self.dead

        self.fleet = fleet = Fleet(is_alive, rejoin_s=rejoin_s)

    @property
    def running(self) -> Fleet:
        """The fleet's process that runs."""
        assert self.fleet is not None
        return self.fleet

    def states(self) -> dict[str, tuple[str, int]]:
        """Replica -> its method and its fleet generation, of those that live."""
        return {
            name: (active.name, active.fleet_generation)
            for name, gateway in self.gateways.items()
            if name not in self.dead
            for active in [gateway.runtime.switcher.active]
        }

    async def close(self) -> None:
        """Ends every attendance."""
        await asyncio.gather(*(each.end() for each in self.attendances.values()))


class Door:
    """The fleet as one replica reaches it; a dead replica reaches nothing."""

    def __init__(self, house: House, name: str) -> None:
        self._house = house
        self._name = name

    async def join(self, state: ReplicaState, revision: int) -> ReplicaState:
        """See `FleetOfReplica.join`."""
        return await self._open().join(self._name, self._name, state, revision)

    async def leave(self) -> None:
        """See `FleetOfReplica.leave`."""
        self._open().leave(self._name)

    async def collect(self) -> list[Call] | None:
        """See `FleetOfReplica.collect`."""
        fleet = self._open()
        waiting = asyncio.ensure_future(fleet.collect(self._name))
        try:
            while not waiting.done():
                await asyncio.wait((waiting,), timeout=0.02)
                if self._open() is not fleet:
                    raise FleetLost
            return waiting.result()
        finally:
            waiting.cancel()

    async def answer(self, answer: Answer) -> None:
        """See `FleetOfReplica.answer`."""
        self._open().answer(self._name, answer)

    async def declare(self, revision: int, order: Order) -> FleetReport | None:
        """See `FleetOfReplica.declare`."""
        return await self._open().declare(revision, order)

    def _open(self) -> Fleet:
        if self._house.fleet is None or self._name in self._house.dead:
            self._house.noticed.add(self._name)
            raise FleetLost
        return self._house.fleet


def order(method: str | None, **fields: Any) -> Order:
    """A switch."""
    return Order(method, **fields)
