"""The admin routes over HTTP, on the fake engine."""

import asyncio
from typing import Any

import httpx
import pytest

from engine_adapter.seam.types import Switch
from server.text import TOO_LONG
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

COMPLETION = {"model": "specgate-demo", "prompt": "def f():", "max_tokens": 8}


@pytest.fixture
def client(gateway: Gateway) -> httpx.AsyncClient:
    return gateway.client


async def switch(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/switch_spec_method", json=body)


async def test_a_switch_returns_the_previous_and_the_active_method(
    client: httpx.AsyncClient,
) -> None:
    response = await switch(
        client, speculative_model="[ngram]", num_speculative_tokens=3, timeout_s=30, reason="test"
    )
    assert response.status_code == 200
    body = response.json()
    assert body.pop("waited_ms") >= 0
    assert body == {
        "previous": {"spec_method": "draft", "num_speculative_tokens": 4},
        "active": {"spec_method": "ngram", "num_speculative_tokens": 3},
        "mode": "immediate",
        "generation": 1,
        "fleet_generation": 0,
        "in_flight": 0,
        "aborted": 0,
    }


async def test_the_next_request_uses_the_new_method(client: httpx.AsyncClient) -> None:
    for name in ("suffix", "none", "draft-small"):
        await switch(client, speculative_model=name)
        response = await client.post("/v1/completions", json=COMPLETION)
        assert response.headers["x-specgate-spec-method"] == name


@pytest.mark.parametrize("field", ["speculative_model", "proposer"])
@pytest.mark.parametrize("name", [None, "none", "None", "disable"])
async def test_null_and_none_are_plain_decoding(
    client: httpx.AsyncClient, field: str, name: str | None
) -> None:
    response = await switch(client, **{field: name})
    active = response.json()["active"]
    assert active == {"spec_method": "none", "num_speculative_tokens": 0}


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        ({"speculative_model": "nope"}, 404, "speculative_model", "proposer_not_found"),
        ({"proposer": "nope"}, 404, "proposer", "proposer_not_found"),
        ({"speculative_model": "nobody"}, 404, "speculative_model", "proposer_not_found"),
        ({"speculative_model": "[draft_model]"}, 400, "speculative_model", "proposer_ambiguous"),
        (
            {"speculative_model": "ngram", "num_speculative_tokens": 6},
            400,
            "num_speculative_tokens",
            "num_speculative_tokens_too_large",
        ),
        ({"speculative_model": "ngram", "mode": "later"}, 400, "mode", "unknown_mode"),
        ({"speculative_model": "ngram", "mode": None}, 400, "mode", None),
        ({"speculative_model": "ngram", "timeout_s": None}, 400, "timeout_s", None),
        ({"speculative_model": "ngram", "on_timeout": None}, 400, "on_timeout", None),
        ({"speculative_model": 7}, 400, "speculative_model", None),
        ({"speculative_model": ["ngram"]}, 400, "speculative_model", None),
        (
            {"speculative_model": "ngram", "num_speculative_tokens": "4"},
            400,
            "num_speculative_tokens",
            None,
        ),
        (
            {"speculative_model": "ngram", "num_speculative_tokens": -1},
            400,
            "num_speculative_tokens",
            None,
        ),
        (
            {"speculative_model": "ngram", "num_speculative_tokens": True},
            400,
            "num_speculative_tokens",
            None,
        ),
        ({"speculative_model": "ngram", "timeout_s": 0}, 400, "timeout_s", None),
        ({"speculative_model": "ngram", "on_timeout": "move"}, 400, "on_timeout", None),
        ({"speculative_model": "ngram", "reason": "x" * 201}, 400, "reason", TOO_LONG),
        ({"speculative_model": "ngram", "k": 4}, 400, "k", "unknown_parameter"),
        ({"speculative_model": "ngram", "proposer": "draft"}, 400, "proposer", None),
        ({}, 400, "speculative_model", "missing_required_parameter"),
    ],
)
async def test_a_bad_switch_names_its_field_and_changes_nothing(
    gateway: Gateway,
    client: httpx.AsyncClient,
    body: dict[str, Any],
    status: int,
    param: str,
    code: str | None,
) -> None:
    response = await switch(client, **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    assert error["message"]
    assert gateway.runtime.switcher.active.epoch == 0


async def test_a_switch_may_send_the_defaults_of_a_drain(client: httpx.AsyncClient) -> None:
    """Generated clients send every field that has a default."""
    response = await switch(client, speculative_model="ngram", timeout_s=30.0, on_timeout="fail")
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("content", [b'{"speculative_model"', b"", b"[]", b"null", b'"ngram"'])
async def test_a_body_that_is_not_a_json_object_is_refused(
    client: httpx.AsyncClient, content: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    response = await client.post("/v1/switch_spec_method", content=content, headers=headers)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_of_fifty_simultaneous_switches_one_runs_at_a_time(
    gateway: Gateway, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_now = most_at_once = 0
    engine = gateway.state.engine

    async def slow(switch: Switch, *, running: bool) -> None:
        nonlocal running_now, most_at_once
        running_now += 1
        most_at_once = max(most_at_once, running_now)
        await asyncio.sleep(0.02)
        running_now -= 1

    monkeypatch.setattr(engine, "switch", slow)
    names = ("ngram", "suffix", "draft", "draft-small", "none")
    responses = await asyncio.gather(
        *(switch(client, speculative_model=names[i % 5]) for i in range(50))
    )
    won = [r for r in responses if r.status_code == 200]
    lost = [r for r in responses if r.status_code == 409]
    assert most_at_once == 1
    assert won
    assert len(won) + len(lost) == 50
    assert {r.json()["error"]["code"] for r in lost} == {"switch_in_progress"}
    assert sorted(r.json()["generation"] for r in won) == list(range(1, len(won) + 1))
    assert gateway.runtime.switcher.active.epoch == len(won)


async def test_an_engine_that_dies_in_a_switch_leaves_the_old_method(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_die_at_call": "switch"})
    response = await switch(gateway.client, speculative_model="ngram")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_dead"
    assert "retry-after" not in response.headers
    assert gateway.runtime.switcher.active.name == "draft"
    assert gateway.state.audit.switches[0].outcome == "failed"


async def test_a_dead_engine_is_shown_and_refuses_switches(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    assert (await client.get("/v1/spec_method")).json()["engine"] == {
        "state": "serving",
        "reason": None,
        "retry_after_s": None,
    }
    await switch(client, speculative_model="suffix")
    gateway.engine.die("killed", retry_after_s=12.4)
    shown = (await client.get("/v1/spec_method")).json()
    assert shown["engine"] == {
        "state": "restarting",
        "reason": "The engine died: killed.",
        "retry_after_s": 12.4,
    }
    assert (shown["spec_method"], shown["generation"]) == ("suffix", 1)
    proposers = (await client.get("/v1/proposers")).json()["data"]
    assert [p["name"] for p in proposers] == [p.name for p in gateway.engine.info.proposers]

    response = await switch(client, speculative_model="ngram", reason="too late")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert response.headers["retry-after"] == "13"
    shown = (await client.get("/v1/spec_method")).json()
    assert (shown["spec_method"], shown["generation"]) == ("suffix", 1)
    assert (shown["switches"][0]["outcome"], shown["switches"][0]["reason"]) == (
        "failed",
        "too late",
    )

    gateway.engine.revive()
    completion = (await client.post("/v1/completions", json=COMPLETION)).json()
    assert completion["metrics"]["speculative_decoding"]["proposer"] == "suffix"
    assert (await switch(client, speculative_model="ngram")).json()["generation"] == 2


async def test_an_engine_that_is_not_restarted_is_dead(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    gateway.engine.die("killed too often")
    engine = (await client.get("/v1/spec_method")).json()["engine"]
    assert (engine["state"], engine["retry_after_s"]) == ("dead", None)


async def test_the_active_method_is_shown_with_past_switches(client: httpx.AsyncClient) -> None:
    await switch(client, speculative_model="suffix", mode="new_requests", reason="nightly")
    await switch(client, speculative_model="ngram", num_speculative_tokens=2)
    body = (await client.get("/v1/spec_method")).json()
    assert (body["spec_method"], body["num_speculative_tokens"]) == ("ngram", 2)
    assert body["generation"] == 2
    newest, oldest = body["switches"]
    assert newest["from"] == {"spec_method": "suffix", "num_speculative_tokens": 8}
    assert newest["to"] == {"spec_method": "ngram", "num_speculative_tokens": 2}
    assert newest["when"] <= body["since"]
    assert (oldest["mode"], oldest["reason"], oldest["outcome"]) == (
        "new_requests",
        "nightly",
        "switched",
    )


async def test_the_figures_match_the_requests(client: httpx.AsyncClient) -> None:
    request = {**COMPLETION, "max_tokens": 200, "spec_decode": {"proposer": "ngram"}}
    completion = (await client.post("/v1/completions", json=request)).json()
    counts = completion["metrics"]["speculative_decoding"]["by_proposer"]["ngram"]
    figures = (await client.get("/v1/spec_method")).json()["proposers"]
    assert {key: figures["ngram"][key] for key in counts} == counts
    assert figures["ngram"]["acceptance_rate"] == pytest.approx(
        counts["accepted"] / counts["drafted"]
    )
    assert figures["suffix"]["acceptance_rate"] is None


async def test_requests_in_flight_move_with_an_immediate_switch_unless_pinned(
    start: StartGateway,
) -> None:
    gateway = await start(engine_args={"fake_step_ms": 20})
    long = {**COMPLETION, "max_tokens": 500, "ignore_eos": True}
    exchanges = [
        gateway.exchange("/v1/completions", body)
        for body in (long, long, {**long, "spec_decode": {"proposer": "suffix"}})
    ]
    tasks = [exchange.begin() for exchange in exchanges]
    await eventually(lambda: len(gateway.runtime.switcher.in_flight) == 3)
    before = (await gateway.client.get("/v1/spec_method")).json()["in_flight"]
    result = (await switch(gateway.client, speculative_model="ngram")).json()
    after = (await gateway.client.get("/v1/spec_method")).json()["in_flight"]
    for exchange in exchanges:
        exchange.leave()
    await asyncio.gather(*tasks)
    assert before == {"draft": 2, "suffix": 1}
    assert after == {"ngram": 2, "suffix": 1}
    assert result["in_flight"] == 3
    assert len(gateway.runtime.switcher.in_flight) == 0


async def test_the_proposers_are_shown_in_their_order(client: httpx.AsyncClient) -> None:
    body = (await client.get("/v1/proposers")).json()
    assert body["object"] == "list"
    shown = [(p["name"], p["method"], p["num_speculative_tokens"]) for p in body["data"]]
    assert shown == [
        ("ngram", "ngram", 5),
        ("suffix", "suffix", 8),
        ("draft", "draft_model", 4),
        ("draft-small", "draft_model", 4),
        ("medusa", "medusa", 4),
        ("mlp-speculator", "mlp_speculator", 4),
        ("eagle", "eagle", 4),
        ("eagle3", "eagle3", 4),
        ("prediction", "prediction", 8),
    ]
    roles = {p["name"]: p["roles"] for p in body["data"] if p["roles"]}
    assert roles == {"ngram": ["backup"], "draft": ["primary"]}
    assert {p["state"] for p in body["data"]} == {"loaded"}
    for field in ("model", "tensor_parallel_size", "weights_bytes", "kv_bytes", "draft_latency_ms"):
        assert all(field in p for p in body["data"]), field


@pytest.mark.parametrize("path", ["/v1/spec_method", "/v1/proposers"])
async def test_admin_routes_are_503_until_the_start_has_ended(
    start: StartGateway, path: str
) -> None:
    gateway = await start(wait=False, engine_args={"fake_start_s": 60})
    response = await gateway.client.get(path)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_not_ready"


async def test_a_long_reason_is_counted_in_characters(client: httpx.AsyncClient) -> None:
    response = await switch(client, speculative_model="ngram", reason="x" * 201)
    assert "201 characters; the maximum is 200" in response.json()["error"]["message"]


async def test_the_choice_of_parsers_is_shown_with_its_reason(gateway: Gateway) -> None:
    parsers = (await gateway.client.get("/v1/spec_method")).json()["parsers"]
    assert parsers["tool_call"]["name"] == "hermes"
    assert parsers["reasoning"]["name"] is None
    assert all(parser["reason"] for parser in parsers.values())


async def test_the_prefix_cache_is_emptied_while_no_request_runs(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 20, "fake_length": 500})
    response = await gateway.client.post("/reset_prefix_cache")
    assert (response.status_code, response.json()) == (200, {"reset": True})
    running = asyncio.create_task(gateway.complete(max_tokens=400))
    await eventually(lambda: gateway.engine.num_running > 0)
    response = await gateway.client.post("/reset_prefix_cache")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "prefix_cache_in_use")
    running.cancel()


async def test_options_of_vllms_for_the_prefix_cache_are_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/reset_prefix_cache", params={"reset_running_requests": "true"})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "unsupported_parameter")
    assert error["param"] == "reset_running_requests"
