"""Requests at one replica's ingress are about the whole fleet; no Ray is needed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.fleet.coordinator import switch_fleet
from server.fleet.desired import DesiredState
from server.fleet.replica import FleetSwitch, ReplicaState
from server.http.auth import OnlyThisMachine
from server.ray_serve.routes import ONE_REPLICA, serve_fleet
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


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    """Calls replica `a`, whose answers are not those of the OpenAPI document."""
    app = house.gateways["a"].app
    serve_fleet(app, house.fleets["a"])
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


@pytest.mark.parametrize("lacks", [True, False])
async def test_a_replica_that_lags_is_named(
    house: House, client: httpx.AsyncClient, lacks: bool
) -> None:
    engine = house.gateways["b"].engine
    if lacks:
        await engine.unload_proposer("ngram")
    else:
        engine.die(retry_after_s=600)
    answer = await client.post("/v1/switch_spec_method", json={"speculative_model": "ngram"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "fleet_incomplete")
    assert "follow as soon as they can: b: " in error["message"]
    states = house.states()
    assert (states.pop("b"), set(states.values())) == (("draft", 0), {("ngram", 1)})


async def test_a_switch_that_another_one_overtakes_says_so(
    house: House, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = DesiredState(7, "suffix", 5)
    told = house.fleets["b"].member.set

    async def overtaken(*arguments: Any) -> ReplicaState:
        await told(later)
        return await told(*arguments)

    monkeypatch.setattr(house.fleets["b"].member, "set", overtaken)
    answer = await client.post("/v1/switch_spec_method", json={"speculative_model": "ngram"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "switch_in_progress")


async def test_a_fleet_that_does_not_answer_is_unavailable(
    house: House, client: httpx.AsyncClient
) -> None:
    house.hidden |= set(NAMES)
    switch = await client.post("/v1/switch_spec_method", json={"speculative_model": "ngram"})
    for answer in (switch, await client.get("/v1/fleet"), await client.get("/metrics")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "fleet_unavailable")
        assert answer.headers["retry-after"] == "1"


async def test_policies_are_the_fleets_and_rules_are_not(
    house: House, client: httpx.AsyncClient
) -> None:
    policies = {"auto": {"min_gain": 0.5}}
    answer = await client.put("/v1/spec_policy", json={"policies": policies})
    assert answer.status_code == 200
    assert house.states() == dict.fromkeys(NAMES, ("draft", 1))
    bad = await client.put("/v1/spec_policy", json={"policies": {"auto": {"min": 1}}})
    assert bad.status_code == 400
    assert "min" in bad.json()["error"]["message"]
    rules = await client.put("/v1/spec_policy", json={"rules": []})
    assert (rules.status_code, rules.json()["error"]["param"]) == (400, "rules")


async def test_policies_leave_a_method_that_this_replica_has_missed(
    house: House, client: httpx.AsyncClient
) -> None:
    house.hidden.add("a")
    await switch_fleet(house.fleets["b"], FleetSwitch("ngram"))
    house.hidden.clear()
    assert house.states()["a"] == ("draft", 0)
    await client.put("/v1/spec_policy", json={"policies": {"auto": {"min_gain": 0.5}}})
    assert house.states() == dict.fromkeys(NAMES, ("ngram", 2))


async def test_the_fleet_shows_every_replica(house: House, client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/fleet")).json()["desired"] is None
    await client.post("/v1/switch_spec_method", json={"speculative_model": "ngram"})
    shown = (await client.get("/v1/fleet")).json()
    assert (shown["desired"]["spec_method"], shown["desired"]["generation"]) == ("ngram", 1)
    assert {name: state["fleet"]["generation"] for name, state in shown["replicas"].items()} == (
        dict.fromkeys(NAMES, 1)
    )
    assert shown["replicas"]["b"]["active"]["spec_method"] == "ngram"


async def test_the_metrics_have_every_replica(house: House, client: httpx.AsyncClient) -> None:
    await house.gateways["b"].complete(max_tokens=1)
    answer = await client.get("/metrics")
    found = {
        family.name: [(s.labels["replica"], s.value) for s in family.samples]
        for family in text_string_to_metric_families(answer.text)
    }
    assert found["specgate_fleet_generation"] == [(name, 0.0) for name in NAMES]
    generated = [pair for pair in found["vllm:generation_tokens"] if pair[1]]
    assert ("b", 1.0) in generated
    heads = [line for line in answer.text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))


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
    serve_fleet(gateway.app, house.fleets["a"])
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
