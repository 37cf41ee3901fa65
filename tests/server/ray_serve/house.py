"""A fleet in the test's own process: gateways on fake engines, and a Serve that is an object."""

import asyncio
import pickle
from typing import Any

from server.ray_serve.fleet import ServeFleet
from tests.server.gateway import Gateway

NAMES = ("a", "b", "c", "d")


class House:
    """Replicas that Serve reaches, unless they are dead, or hang.

    Attributes:
        dead: the replicas whose process has ended; Serve may not know it yet.
        hung: the replicas that answer nothing.
        hidden: the replicas that Serve calls no more, or not yet.
    """

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.hung: set[str] = set()
        self.hidden: set[str] = set()
        self.gateways: dict[str, Gateway] = {}
        self.fleets: dict[str, ServeFleet] = {}

    async def add(self, name: str, gateway: Gateway) -> ServeFleet:
        """Lets a gateway join as the replica `name`."""
        fleet = ServeFleet(name, gateway.state, Handle(self))
        await fleet.begin()
        self.gateways[name] = gateway
        self.fleets[name] = fleet
        return fleet

    def states(self) -> dict[str, tuple[str, int]]:
        """Replica -> its method and its fleet generation, of those that live."""
        return {
            name: (active.name, active.fleet.generation)
            for name, gateway in self.gateways.items()
            if name not in self.dead
            for active in [gateway.runtime.switcher.active]
        }

    async def close(self) -> None:
        """Ends every replica's questions."""
        await asyncio.gather(*(each.end() for each in self.fleets.values()))

    async def call(self, name: str, method: str, *arguments: Any) -> Any:
        """A call that reaches a replica through Ray: what is sent is pickled."""
        if name in self.hung:
            await asyncio.Event().wait()
        if name in self.dead:
            return RuntimeError("the actor died")
        sent = pickle.loads(pickle.dumps(arguments))
        answer = await self.fleets[name].call(method, *sent)
        return pickle.loads(pickle.dumps(answer))


class Handle:
    """Serve's handle of the deployment."""

    def __init__(self, house: House) -> None:
        self._house = house

    @property
    def fleet_call(self) -> "Handle":
        """The method that `remote` calls."""
        return self

    async def remote(self, method: str, *arguments: Any) -> Any:
        """Calls the first replica that Serve knows."""
        answer = await self._house.call(self._names()[0], method, *arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def broadcast(self, name: str, method: str, *arguments: Any) -> "Calls":
        """Calls every replica that Serve knows."""
        assert name == "fleet_call"
        return Calls([self._house.call(each, method, *arguments) for each in self._names()])

    def _names(self) -> list[str]:
        names = [name for name in self._house.fleets if name not in self._house.hidden]
        if not names:
            raise RuntimeError("the deployment is unavailable")
        return names


class Calls:
    """What `broadcast` returns."""

    def __init__(self, calls: list[Any]) -> None:
        self._calls = calls

    async def results_async(self, *, timeout_s: float, return_exceptions: bool) -> list[Any]:
        """All answers, or `TimeoutError`."""
        assert return_exceptions
        async with asyncio.timeout(timeout_s):
            return await asyncio.gather(*self._calls)
