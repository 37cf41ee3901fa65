"""Four servers on real ports switch as one, under load, and where one of them cannot."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import httpx
import pytest

from server.control.records import SwitchResult
from server.fleet.addresses import Address
from server.fleet.coordinator import switch_fleet
from server.fleet.http_replica import HttpReplica, fleet_client, http_replicas
from server.fleet.replica import FleetOutcome, FleetReport, Order, ReplicaOutcome
from tests.server.conftest import StartServer
from tests.server.gateway import eventually
from tests.server.threaded import ADMIN_KEY, ThreadedServer

METHODS = ("ngram", "suffix", "draft", "none", "goodput", "medusa")
MODES = ("immediate", "new_requests", "drain")
PROMPTS = tuple(f"def f{i}(x):" for i in range(8))
NGRAM_ONLY = {"proposer": [{"name": "ngram", "num_speculative_tokens": 5}]}


@pytest.fixture
def servers(start_server: StartServer) -> list[ThreadedServer]:
    return [start_server(engine_args={"fake_step_ms": 1}) for _ in range(4)]


def addresses(servers: Sequence[ThreadedServer]) -> list[Address]:
    return [Address(server.url) for server in servers]


def has(servers: Sequence[ThreadedServer]) -> set[tuple[str, int]]:
    """Method and generation of each, as the server itself has them."""
    states = [server.runtime.fleet.state() for server in servers]
    return {(state.active.spec_method, state.fleet_generation) for state in states}


def in_flight(servers: Sequence[ThreadedServer]) -> int:
    return sum(len(server.runtime.switcher.in_flight) for server in servers)


class Load:
    """Requests to every server, again and again; each text must be that of plain decoding."""

    def __init__(self, servers: Sequence[ThreadedServer], expected: dict[str, str]) -> None:
        self._servers = servers
        self._expected = expected
        self._stop = False
        self.answers = 0

    async def run(self, switch: Callable[[], Awaitable[None]]) -> None:
        """Runs until `switch` has returned. Raises for a request that is lost or wrong."""
        async with httpx.AsyncClient(timeout=120) as client, asyncio.TaskGroup() as group:
            for i, server in enumerate(self._servers):
                group.create_task(self._ask(client, server, PROMPTS[i:]))
                group.create_task(self._ask(client, server, PROMPTS[i + 1 :]))
            try:
                await switch()
            finally:
                self._stop = True

    async def _ask(
        self, client: httpx.AsyncClient, server: ThreadedServer, prompts: Sequence[str]
    ) -> None:
        while not self._stop:
            for prompt in prompts:
                assert await text(client, server, prompt) == self._expected[prompt]
                self.answers += 1


async def text(client: httpx.AsyncClient, server: ThreadedServer, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0}
    answer = await client.post(f"{server.url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@dataclass
class Switches:
    """Switches that were made under load.

    Attributes:
        methods: what was asked for, in order.
        reports: what the coordinator said of each.
        states: what the servers had after each.
        answers: how many requests were answered meanwhile, all with the right text.
    """

    methods: list[str] = field(default_factory=list)
    reports: list[FleetReport] = field(default_factory=list)
    states: list[set[tuple[str, int]]] = field(default_factory=list)
    answers: int = 0


async def switch_under_load(servers: Sequence[ThreadedServer], mode: str, number: int) -> Switches:
    """Switches `number` times. Raises for a request that is lost or wrong."""
    async with httpx.AsyncClient(timeout=120) as client:
        expected = {prompt: await text(client, servers[0], prompt) for prompt in PROMPTS}
    load, rng, made = Load(servers, expected), random.Random(mode), Switches()

    async def switch() -> None:
        async with fleet_client(ADMIN_KEY) as client:
            replicas = http_replicas(client, addresses(servers))
            for _ in range(number):
                # Every switch meets requests that are in flight.
                await eventually(lambda: in_flight(servers) > 0)
                order = Order(rng.choice(METHODS), mode=mode, timeout_s=120)
                made.methods.append(str(order.speculative_model))
                made.reports.append(await switch_fleet(replicas, order))
                made.states.append(has(servers))

    await load.run(switch)
    made.answers = load.answers
    return made


@pytest.mark.parametrize("number", [6, pytest.param(50, marks=pytest.mark.prove)])
@pytest.mark.parametrize("mode", MODES)
async def test_switches_under_load_reach_all_and_lose_nothing(
    servers: list[ThreadedServer], mode: str, number: int
) -> None:
    made = await switch_under_load(servers, mode, number)
    assert {report.outcome for report in made.reports} == {FleetOutcome.SWITCHED}, made.reports
    assert made.states == [{(method, i)} for i, method in enumerate(made.methods, 1)]
    assert len(made.states) == number
    assert made.answers > 0


async def test_a_method_that_one_server_lacks_changes_nothing(
    servers: list[ThreadedServer], start_server: StartServer
) -> None:
    lacking = start_server(**NGRAM_ONLY)
    every = [*servers, lacking]
    async with fleet_client(ADMIN_KEY) as client:
        replicas = http_replicas(client, addresses(every))
        assert (await switch_fleet(replicas, Order("ngram"))).outcome == FleetOutcome.SWITCHED
        report = await switch_fleet(replicas, Order("suffix"))
    assert report.outcome == FleetOutcome.UNCHANGED
    assert report.replicas[4].outcome == ReplicaOutcome.REFUSED
    assert report.replicas[4].code == "proposer_not_found"
    assert has(every) == {("ngram", 1)}
    assert not any(server.runtime.fleet.state().is_switching for server in every)


class Dying(HttpReplica):
    """A replica whose server ends just before, or just after, its commit."""

    def __init__(self, client: httpx.AsyncClient, server: ThreadedServer, when: str) -> None:
        super().__init__(client, Address(server.url))
        self._server, self._when = server, when

    async def commit(self, switch_id: str, generation: int) -> SwitchResult:
        if self._when == "before":
            await asyncio.to_thread(self._server.stop)
        result = await super().commit(switch_id, generation)
        await asyncio.to_thread(self._server.stop)
        await super().state()  # raises: the answer of a server that has ended is lost
        return result


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_server_that_ends_in_mid_switch_is_named_and_the_others_keep_what_they_had(
    servers: list[ThreadedServer], start_server: StartServer, when: str
) -> None:
    async with fleet_client(ADMIN_KEY) as client:
        replicas = http_replicas(client, addresses(servers[:3]))
        dying = Dying(client, servers[3], when)
        report = await switch_fleet([*replicas, dying], Order("suffix"))
        assert report.outcome == FleetOutcome.PARTIAL
        assert report.replicas[3].outcome == ReplicaOutcome.UNKNOWN
        assert has(servers[:3]) == {("none", 2)}

        # It comes back, and asks the others.
        again = start_server(fleet_peers=(servers[0].url,), fleet_key=ADMIN_KEY)
        assert has([again]) == {("none", 2)}
        replicas = http_replicas(client, addresses([*servers[:3], again]))
        assert (await switch_fleet(replicas, Order("suffix"))).outcome == FleetOutcome.SWITCHED
        assert has([*servers[:3], again]) == {("suffix", 3)}


class Held(HttpReplica):
    """A replica whose commit waits for a test."""

    def __init__(self, client: httpx.AsyncClient, address: Address) -> None:
        super().__init__(client, address)
        self.reached, self.gate = asyncio.Event(), asyncio.Event()

    async def commit(self, switch_id: str, generation: int) -> SwitchResult:
        self.reached.set()
        await self.gate.wait()
        return await super().commit(switch_id, generation)


async def test_a_server_that_starts_during_a_switch_has_the_method_soon(
    servers: list[ThreadedServer], start_server: StartServer
) -> None:
    async with fleet_client(ADMIN_KEY) as client:
        held = [Held(client, address) for address in addresses(servers)]
        switching = asyncio.create_task(switch_fleet(held, Order("suffix")))
        for one in held:
            await one.reached.wait()
        peers = tuple(server.url for server in servers)
        new = await asyncio.to_thread(
            start_server, fleet_peers=peers, fleet_key=ADMIN_KEY, fleet_poll_s=0.02
        )
        assert has([new]) == {("none", 0)}, "no replica had committed when it asked"
        for one in held:
            one.gate.set()
        assert (await switching).outcome == FleetOutcome.SWITCHED
        await eventually(lambda: has([*servers, new]) == {("suffix", 1)})


async def test_a_coordinator_that_dies_between_the_phases_blocks_no_server(
    servers: list[ThreadedServer],
) -> None:
    async with fleet_client(ADMIN_KEY) as dead:
        for replica in http_replicas(dead, addresses(servers)):
            await replica.prepare("dead", Order("suffix"), 0.2)
    await eventually(lambda: not any(s.runtime.fleet.state().is_switching for s in servers))
    async with fleet_client(ADMIN_KEY) as client:
        replicas = http_replicas(client, addresses(servers))
        assert (await switch_fleet(replicas, Order("ngram"))).outcome == FleetOutcome.SWITCHED
        late = await asyncio.gather(
            *(one.commit("dead", 9) for one in replicas), return_exceptions=True
        )
    assert [getattr(error, "code", None) for error in late] == ["not_prepared"] * 4
    assert has(servers) == {("ngram", 1)}


async def test_a_coordinator_that_comes_between_the_phases_of_another_changes_nothing(
    servers: list[ThreadedServer],
) -> None:
    async with fleet_client(ADMIN_KEY) as client:
        held = [Held(client, address) for address in addresses(servers)]
        switching = asyncio.create_task(switch_fleet(held, Order("suffix")))
        for one in held:
            await one.reached.wait()
        late = await switch_fleet(http_replicas(client, addresses(servers)), Order("ngram"))
        assert late.outcome == FleetOutcome.UNCHANGED
        assert {one.code for one in late.replicas} == {"switch_in_progress"}
        for one in held:
            one.gate.set()
        assert (await switching).outcome == FleetOutcome.SWITCHED
    assert has(servers) == {("suffix", 1)}


async def test_of_two_coordinators_at_a_time_at_most_one_switches(
    servers: list[ThreadedServer],
) -> None:
    """Both may meet each other's reservations, and give up."""
    switched = 0
    async with fleet_client(ADMIN_KEY) as client:
        replicas = http_replicas(client, addresses(servers))
        for _ in range(5):
            reports = await asyncio.gather(
                switch_fleet(replicas, Order("suffix")),
                switch_fleet(replicas[::-1], Order("ngram")),
            )
            outcomes = {report.outcome for report in reports}
            assert outcomes <= {FleetOutcome.SWITCHED, FleetOutcome.UNCHANGED}
            switched += sum(report.outcome == FleetOutcome.SWITCHED for report in reports)
            ((_, generation),) = has(servers)
            assert generation == switched
            assert not any(server.runtime.fleet.state().is_switching for server in servers)


async def test_a_drain_that_one_server_cannot_end_is_rolled_back_everywhere(
    servers: list[ThreadedServer], start_server: StartServer
) -> None:
    # A step of it takes longer than the test.
    busy = start_server(engine_args={"fake_step_ms": 3_600_000})
    every = [*servers, busy]
    async with fleet_client(ADMIN_KEY) as client, httpx.AsyncClient() as user:
        asking = asyncio.create_task(text(user, busy, PROMPTS[0]))
        await eventually(lambda: in_flight([busy]) == 1)
        replicas = http_replicas(client, addresses(every))
        order = Order("suffix", mode="drain", timeout_s=0.1)
        report = await switch_fleet(replicas, order)
        assert report.outcome == FleetOutcome.ROLLED_BACK
        assert report.replicas[4].code == "drain_timeout"
        assert has(every) == {("none", 2)}
        moved = await switch_fleet(replicas, replace(order, mode="immediate"))
        assert moved.outcome == FleetOutcome.SWITCHED
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


class Flaky(httpx.AsyncHTTPTransport):
    """Loses the answers of a path once, after the server has sent them."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self.lost = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.url.path == self._path and not self.lost:
            self.lost += 1
            await response.aread()
            raise httpx.ReadError("the connection was closed")
        return response


@pytest.mark.parametrize("path", ["/v1/prepare_switch", "/v1/commit_switch"])
async def test_a_call_whose_connection_is_closed_is_repeated(
    servers: list[ThreadedServer], path: str
) -> None:
    transport = Flaky(path)
    async with fleet_client(ADMIN_KEY, transport) as client:
        report = await switch_fleet(http_replicas(client, addresses(servers)), Order("ngram"))
    assert transport.lost == 1
    assert report.outcome == FleetOutcome.SWITCHED
    assert has(servers) == {("ngram", 1)}
    switches = [one for server in servers for one in server.runtime.audit.switches]
    assert len(switches) == 4, "no server has switched twice"
