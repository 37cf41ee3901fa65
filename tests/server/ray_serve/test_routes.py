"""Requests at one replica's ingress are about the whole fleet; no Ray is needed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from server.fleet.replica import ReplicaRefused
from server.ray_serve.attendance import FleetLost
from server.ray_serve.routes import ONE_REPLICA, serve_fleet
from server.ray_serve.this_machine import OnlyThisMachine
from tests.server.conftest import StartGateway
from tests.server.gateway import BASE_URL, eventually
from tests.server.ray_serve.house import House

NAMES = ("a", "b", "c")


@pytest.fixture
async def house(start: StartGateway) -> AsyncIterator[House]:
    made = House()
    for name in NAMES:
        await made.add(name, await start())
    yield made
    await made.close()


class Ingress:
    """The fleet of a house, also after the house has another one."""

    def __init__(self, house: House) -> None:
        self._house = house

    def __getattr__(self, name: str) -> Any:
        return getattr(self._house.running, name)


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    """Calls replica `a`, whose answers are not those of the OpenAPI document."""
    app = house.gateways["a"].app
    serve_fleet(app, Ingress(house))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as made:
        yield made


async def test_a_switch_is_the_fleets(house: House, client: httpx.AsyncClient) -> None:
    body = {"speculative_model": "ngram", "mode": "drain", "reason": "why"}
    answer = (await client.post("/v1/switch_spec_method", json=body)).json()
    assert house.states() == dict.fromkeys(NAMES, ("ngram", 1))
    report = answer.pop("fleet")
    assert answer.pop("waited_ms") == report["took_ms"]
    assert answer == {
        "previous": {"spec_method": "draft", "num_speculative_tokens": 4},
        "active": {"spec_method": "ngram", "num_speculative_tokens": 5},
        "mode": "drain",
        "generation": 1,
        "fleet_generation": 1,
        "in_flight": 0,
        "aborted": 0,
    }
    assert {replica["replica"] for replica in report["replicas"]} == set(NAMES)


async def test_in_flight_and_aborted_are_those_of_all_replicas(
    house: House, client: httpx.AsyncClient
) -> None:
    gateways = [house.gateways[name] for name in "bc"]
    requests = [asyncio.create_task(g.complete(max_tokens=2000, ignore_eos=True)) for g in gateways]
    await eventually(lambda: all(len(g.runtime.switcher.in_flight) == 1 for g in gateways))
    body = {"speculative_model": "ngram", "mode": "drain", "timeout_s": 0.01, "on_timeout": "abort"}
    answer = (await client.post("/v1/switch_spec_method", json=body)).json()
    ended = [request.status_code for request in await asyncio.gather(*requests)]
    assert answer["aborted"] == ended.count(503)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"speculative_model": "nope"}, 404, "proposer_not_found"),
        ({"speculative_model": "ngram", "mode": "soon"}, 400, "unknown_mode"),
        ({}, 400, "missing_required_parameter"),
    ],
)
async def test_a_refusal_has_the_code_of_one_server(
    house: House, client: httpx.AsyncClient, body: Any, status: int, code: str
) -> None:
    answer = await client.post("/v1/switch_spec_method", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert house.states() == dict.fromkeys(NAMES, ("draft", 0))


async def test_one_replica_that_refuses_is_named(house: House, client: httpx.AsyncClient) -> None:
    await house.gateways["b"].runtime.engine.unload_proposer("ngram")
    answer = await client.post("/v1/switch_spec_method", json={"speculative_model": "ngram"})
    error = answer.json()["error"]
    assert answer.status_code == 404
    assert error["message"].startswith("b: ")
    assert error["message"].endswith("nothing was changed at any replica.")


@pytest.mark.parametrize(
    "error", [RuntimeError("no memory"), ReplicaRefused("of a later version", "of_a_later_version")]
)
async def test_what_the_order_did_not_cause_is_the_servers_fault(
    house: House, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(house.attendances["b"]._replica, "commit", broken)
    answer = await client.post("/v1/switch_spec_method", json={"speculative_model": "ngram"})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert answer.json()["error"]["message"].startswith(f"b: {error}; every replica has")


async def test_a_fleet_that_does_not_answer_is_unavailable(
    house: House, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> None:
        raise FleetLost

    for name in ("switch", "status"):
        monkeypatch.setattr(house.running, name, lost)
    switch = await client.post("/v1/switch_spec_method", json={"speculative_model": "ngram"})
    for answer in (switch, await client.get("/v1/fleet")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "fleet_unavailable")
        assert answer.headers["retry-after"] == "1"


async def test_policies_are_the_fleets_and_rules_are_not(
    house: House, client: httpx.AsyncClient
) -> None:
    policies = {"goodput": {"min_gain": 0.5}}
    answer = await client.put("/v1/spec_policy", json={"policies": policies})
    assert answer.status_code == 200
    assert house.states() == dict.fromkeys(NAMES, ("draft", 1))
    bad = await client.put("/v1/spec_policy", json={"policies": {"goodput": {"min": 1}}})
    assert bad.status_code == 400
    assert "min" in bad.json()["error"]["message"]
    rules = await client.put("/v1/spec_policy", json={"rules": []})
    assert (rules.status_code, rules.json()["error"]["param"]) == (400, "rules")


async def test_the_fleet_shows_every_replica(house: House, client: httpx.AsyncClient) -> None:
    await client.post("/v1/switch_spec_method", json={"speculative_model": "ngram"})
    shown = (await client.get("/v1/fleet")).json()
    assert shown["in_force"]["active"]["spec_method"] == "ngram"
    assert {name: state["fleet_generation"] for name, state in shown["replicas"].items()} == (
        dict.fromkeys(NAMES, 1)
    )
    assert (shown["revision"], shown["is_switching"]) == (0, False)


async def test_the_metrics_have_every_replica(house: House, client: httpx.AsyncClient) -> None:
    text = (await client.get("/metrics")).text
    assert [line for line in text.splitlines() if line.startswith("m{")] == [
        f'm{{replica="{name}"}} 1.0' for name in NAMES
    ]


@pytest.mark.parametrize("path", ONE_REPLICA)
async def test_what_would_change_one_replica_is_refused(
    client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.post(path, json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "needs_restart")


async def test_what_the_fleet_shows_needs_an_admin_key(start: StartGateway) -> None:
    house = House()
    gateway = await start(admin_key="secret-key-of-an-admin", api_key=("k" * 24,))
    await house.add("a", gateway)
    serve_fleet(gateway.app, Ingress(house))
    for path in ("/v1/fleet", "/metrics"):
        assert (await gateway.client.get(path)).status_code == 401
    await house.close()


async def test_without_keys_only_the_proxys_machine_is_served(start: StartGateway) -> None:
    gateway = await start()
    app = OnlyThisMachine(gateway.app)

    async def status(peer: str, **headers: str) -> int:
        transport = httpx.ASGITransport(app, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            answer = await client.get("/v1/models", headers=headers)
        return answer.status_code

    assert await status("127.0.0.1") == 200
    assert await status("203.0.113.7") == 403
    assert await status("127.0.0.1", host="example.org") == 403
    assert await status("127.0.0.1", **{"x-forwarded-for": "203.0.113.7"}) == 403
