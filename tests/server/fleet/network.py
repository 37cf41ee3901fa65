"""Fifty replicas in one process, and a network between them that loses messages.

Members, switchers, coordinator, peers and the client are the real ones; the engine is a list of
loaded proposers, and the routes are called without an application.
"""

import asyncio
import json
import random
from dataclasses import asdict
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from engine_adapter.policies.catalog import read_policy, to_json
from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.seam.errors import EngineDead, EngineError
from engine_adapter.seam.types import PolicyInfo, ProposerInfo, Switch
from server.control.admin.audit import Audit
from server.control.admin.policy_admin import PolicyAdmin
from server.control.admission.slots import SlotLimits, Slots
from server.control.method_names import LoadedProposers
from server.control.routing.router import Router
from server.control.switching.switcher import Switcher
from server.fleet.addresses import Address
from server.fleet.follower import Follower
from server.fleet.http_fleet import HttpFleet
from server.fleet.member import Member
from server.fleet.peers import Peers
from server.schema.fleet import CheckRequest, FleetMethodRequest
from server.telemetry.metrics import Metrics

ALL = tuple(ProposerInfo(name, "ngram", None, 5) for name in ("ngram", "suffix", "draft"))


class Engine:
    """What a switcher and a policy admin call. It fails now and then."""

    failure: EngineDead | None = None

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._parameters: dict[str, Any] = {name: {} for name in POLICY_NAMES}
        self.fault_rate = 0.0

    @property
    def policies(self) -> tuple[PolicyInfo, ...]:
        every = self._parameters.items()
        return tuple(PolicyInfo(n, to_json(n, read_policy(n, p, {}, None))) for n, p in every)

    async def set_policy(self, name: str, parameters: Any) -> None:
        await self._work()
        self._parameters[name] = dict(parameters)

    async def switch(self, switch: Switch, *, running: bool) -> None:
        await self._work()

    async def _work(self) -> None:
        await asyncio.sleep(0)
        if self._rng.random() < self.fault_rate:
            raise EngineError("the engine failed")


class Replica:
    """A server: its switcher, its member, and its questions to the others."""

    def __init__(self, network: "Network", url: str) -> None:
        self.url = url
        self.is_down = False
        self.proposers = ALL
        self.engine: Any = Engine(network.rng)
        self._network = network
        self._metrics = Metrics(CollectorRegistry())
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again: it knows nothing of the fleet."""

        def loaded() -> LoadedProposers:
            return LoadedProposers(self.proposers, max_speculative_tokens=5)

        engine, metrics, audit = self.engine, self._metrics, Audit()
        slots = Slots(SlotLimits(8, 8, 0, 4, 512))
        self.switcher = Switcher(engine, loaded, metrics, "none", audit, slots)
        router = Router((), loaded, metrics)
        self.admin = PolicyAdmin(engine, router, loaded, tuple, metrics, audit)
        self.member = Member(self.switcher, self.admin)
        self.peers = Peers(self._network.client, self._network.urls, None)
        self.follower = Follower(self.member, self.peers.ask, 0)

    async def restart(self) -> None:
        """Ends it, and starts it with its settings' method; it asks its peers."""
        await self.member.close()
        self.engine._parameters = {name: {} for name in POLICY_NAMES}
        self.start()
        await self.follower.learn()

    async def answer(self, method: str, path: str, body: bytes) -> Any:
        """The JSON of the route."""
        match method, path:
            case "POST", "/v1/check_switch":
                return asdict(
                    self.member.check(CheckRequest.model_validate_json(body).fleet_switch())
                )
            case "PUT", "/v1/fleet_method":
                asked = FleetMethodRequest.model_validate_json(body)
                return asdict(await self.member.set(asked.desired(), asked.way()))
            case _:
                state = self.member.state()
                return {
                    **asdict(state.active),
                    **{"in_flight": {}, "proposers": {}, "engine": {"state": "serving"}},
                    "fleet": asdict(state.fleet),
                }


class Network(httpx.AsyncBaseTransport):
    """Loses `loss` of the requests, and as many of the answers; delivers in any order."""

    def __init__(self, number: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loss = 0.0
        self.client = httpx.AsyncClient(transport=self)
        self.urls = [f"http://10.0.0.{i}:8000" for i in range(number)]
        self.replicas = {url: Replica(self, url) for url in self.urls}

    @property
    def fleet(self) -> HttpFleet:
        """All of them."""
        return HttpFleet(self.client, map(Address, self.urls))

    def some(self, number: int) -> list[Replica]:
        """So many of them."""
        return self.rng.sample(list(self.replicas.values()), number)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = str(request.url.copy_with(path="/")).rstrip("/")
        for _ in range(self.rng.randrange(5)):
            await asyncio.sleep(0)
        replica = self.replicas[url]
        if replica.is_down or self.rng.random() < self.loss:
            raise httpx.ConnectError("lost")
        answer = await replica.answer(request.method, request.url.path, request.content)
        if self.rng.random() < self.loss:
            raise httpx.ConnectError("lost")
        return httpx.Response(200, content=json.dumps(answer))

    async def close(self) -> None:
        """Ends all tries."""
        for replica in self.replicas.values():
            await replica.member.close()
