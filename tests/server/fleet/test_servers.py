"""Four servers on real ports switch under load, and where one of them cannot."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import httpx
import pytest

from server.fleet.addresses import Address
from server.fleet.coordinator import FleetOutcome, FleetReport, switch_fleet
from server.fleet.http_fleet import HttpFleet, fleet_client
from server.fleet.replica import FleetSwitch, Way
from tests.server.conftest import StartServer
from tests.server.gateway import eventually
from tests.server.threaded import ADMIN_KEY, ThreadedServer

METHODS = ("ngram", "suffix", "draft", "none", "auto", "medusa")
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
    return {(state.active.spec_method, state.fleet.generation) for state in states}


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
            fleet = HttpFleet(client, addresses(servers))
            for _ in range(number):
                # Every switch meets requests that are in flight.
                await eventually(lambda: in_flight(servers) > 0)
                method = rng.choice(METHODS)
                made.methods.append(method)
                made.reports.append(
                    await switch_fleet(fleet, FleetSwitch(method, way=Way(mode, 120)))
                )
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


def outcomes(report: FleetReport) -> list[str]:
    return [str(each.outcome) for each in report.replicas]


def code(report: FleetReport, replica: int) -> str | None:
    obstacle = report.replicas[replica].obstacle
    return None if obstacle is None else obstacle.code


async def test_a_server_without_the_proposer_lags(
    servers: list[ThreadedServer], start_server: StartServer
) -> None:
    lacking = start_server(**NGRAM_ONLY)
    async with fleet_client(ADMIN_KEY) as client:
        fleet = HttpFleet(client, addresses([*servers, lacking]))
        assert (await switch_fleet(fleet, FleetSwitch("ngram"))).outcome == FleetOutcome.SWITCHED
        report = await switch_fleet(fleet, FleetSwitch("suffix"))
    assert report.outcome == FleetOutcome.PARTIAL
    assert outcomes(report) == [*["switched"] * 4, "lags"]
    assert code(report, 4) == "proposer_not_found"
    assert (has(servers), has([lacking])) == ({("suffix", 2)}, {("ngram", 1)})


async def test_a_server_that_is_down_is_named_and_has_the_method_when_it_is_back(
    servers: list[ThreadedServer], start_server: StartServer
) -> None:
    await asyncio.to_thread(servers[3].stop)
    async with fleet_client(ADMIN_KEY) as client:
        report = await switch_fleet(HttpFleet(client, addresses(servers)), FleetSwitch("suffix"))
    assert report.outcome == FleetOutcome.PARTIAL
    assert outcomes(report) == [*["switched"] * 3, "unknown"]
    assert has(servers[:3]) == {("suffix", 1)}
    again = start_server(fleet_peers=(servers[0].url,), fleet_key=ADMIN_KEY)
    assert has([again]) == {("suffix", 1)}


async def test_a_server_that_starts_before_a_switch_and_is_not_told_follows(
    servers: list[ThreadedServer], start_server: StartServer
) -> None:
    peers = tuple(server.url for server in servers)
    new = start_server(fleet_peers=peers, fleet_key=ADMIN_KEY, fleet_poll_s=0.02)
    assert has([new]) == {("none", 0)}
    async with fleet_client(ADMIN_KEY) as client:
        await switch_fleet(HttpFleet(client, addresses(servers)), FleetSwitch("suffix"))
    await eventually(lambda: has([*servers, new]) == {("suffix", 1)})


async def test_two_coordinators_at_a_time_agree_on_one_state(
    servers: list[ThreadedServer],
) -> None:
    async with fleet_client(ADMIN_KEY) as client:
        fleet = HttpFleet(client, addresses(servers))
        for _ in range(5):
            reports = await asyncio.gather(
                switch_fleet(fleet, FleetSwitch("suffix")),
                switch_fleet(fleet, FleetSwitch("ngram")),
            )
            ((method, generation),) = has(servers)
            (winner,) = (each.desired for each in reports if _has(each, method, generation))
            assert all(server.runtime.fleet.desired == winner for server in servers)


def _has(report: FleetReport, method: str, generation: int) -> bool:
    state = report.desired
    return state is not None and (state.spec_method, state.generation) == (method, generation)


async def test_a_drain_that_one_server_cannot_end_leaves_the_others_switched(
    servers: list[ThreadedServer], start_server: StartServer
) -> None:
    # A step of it takes longer than the test.
    busy = start_server(engine_args={"fake_step_ms": 3_600_000})
    every = [*servers, busy]
    async with fleet_client(ADMIN_KEY) as client, httpx.AsyncClient() as user:
        asking = asyncio.create_task(text(user, busy, PROMPTS[0]))
        await eventually(lambda: in_flight([busy]) == 1)
        fleet = HttpFleet(client, addresses(every))
        report = await switch_fleet(fleet, FleetSwitch("suffix", way=Way("drain", 0.1)))
        assert report.outcome == FleetOutcome.PARTIAL
        assert outcomes(report) == [*["switched"] * 4, "lags"]
        assert code(report, 4) == "drain_timeout"
        assert has(servers) == {("suffix", 1)}
        await eventually(lambda: has(every) == {("suffix", 1)})
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


@pytest.mark.parametrize("path", ["/v1/check_switch", "/v1/fleet_method"])
async def test_a_call_whose_connection_is_closed_is_repeated(
    servers: list[ThreadedServer], path: str
) -> None:
    transport = Flaky(path)
    async with fleet_client(ADMIN_KEY, transport) as client:
        report = await switch_fleet(HttpFleet(client, addresses(servers)), FleetSwitch("ngram"))
    assert transport.lost == 1
    assert report.outcome == FleetOutcome.SWITCHED
    assert has(servers) == {("ngram", 1)}
    switches = [record for server in servers for record in server.runtime.audit.switches]
    assert len(switches) == 4, "no server has switched twice"
