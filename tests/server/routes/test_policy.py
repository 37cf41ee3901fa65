"""`/v1/spec_policy` and `/v1/explain`, and requests that rules route."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.seam.errors import EngineDead
from server.control.admin.audit import Audit
from server.text import TOO_LONG
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

POLICY = "/v1/spec_policy"
LIGHT = {"light": {"proposer": "ngram", "max_running": 4}}
HEADER = "x-specgate-spec-method"


async def put(gateway: Gateway, **body: Any) -> dict[str, Any]:
    """Changes policies and rules."""
    response = await gateway.client.put(POLICY, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def shown(gateway: Gateway) -> dict[str, Any]:
    answer: dict[str, Any] = (await gateway.client.get(POLICY)).json()
    return answer


def rule(name: str, proposer: str, **match: Any) -> dict[str, Any]:
    return {"name": name, "match": match, "use": {"proposer": proposer}}


async def test_the_policies_are_shown_with_parameters_and_what_they_chose(
    start: StartGateway,
) -> None:
    gateway = await start(spec_method="auto")
    await gateway.complete(max_tokens=200, ignore_eos=True)
    answer = await shown(gateway)
    assert answer["active"] == "auto"
    assert [policy["name"] for policy in answer["policies"]] == list(POLICY_NAMES)
    auto = answer["policies"][0]
    assert auto["parameters"]
    assert sum(auto["decisions"].values()) > 20
    assert auto["suspended"] is False
    assert answer["evidence"]["steps"] > 20
    assert set(answer["evidence"]["proposers"]) >= {"ngram", "draft"}
    assert '"state"' not in json.dumps(answer["evidence"])
    status = (await gateway.client.get("/v1/spec_method")).json()["policy"]
    assert (status["name"], status["decisions"]) == ("auto", auto["decisions"])


async def test_a_proposer_is_not_an_active_policy(gateway: Gateway) -> None:
    assert (await shown(gateway))["active"] is None
    assert (await gateway.client.get("/v1/spec_method")).json()["policy"] is None


async def test_a_change_replaces_only_what_it_names(gateway: Gateway) -> None:
    await put(gateway, policies={"load": LIGHT}, rules=[rule("a", "ngram", model="x")])
    await put(gateway, policies={"auto": {"min_gain": 0.5}}, reason="a test")
    answer = await put(gateway, rules=[rule("b", "none", structured=True)])
    policies = {policy["name"]: policy["parameters"] for policy in answer["policies"]}
    assert policies["load"]["light"]["max_running"] == 4
    assert policies["auto"]["min_gain"] == 0.5
    assert [one["name"] for one in answer["rules"]] == ["b"]
    newest, middle, oldest = answer["changes"]
    assert (newest["policies"], newest["outcome"]) == (None, "changed")
    assert (middle["policies"], middle["reason"]) == ({"auto": {"min_gain": 0.5}}, "a test")
    assert (middle["rules"], oldest["who"]) == (None, "loopback")
    assert (await put(gateway, rules=[]))["rules"] == []


INVALID: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, "policies", "missing_required_parameter"),
    ({"policy": {}}, "policy", "unknown_parameter"),
    ({"policies": {"fast": {}}}, "policies.fast", None),
    ({"policies": {"load": []}}, "policies.load", None),
    ({"policies": {"load": {"lite": {}}}}, "policies.load.lite", None),
    ({"policies": {"load": {"light": {"max_running": -1}}}}, "policies.load.light.max_running",
     None),
    (
        {"policies": {"load": {**LIGHT, "heavy": {"proposer": "draft", "max_running": 4}}}},
        "policies.load.heavy.max_running",
        None,
    ),
    (
        {"policies": {"load": {"light": {"proposer": "nobody", "max_running": 4}}}},
        "policies.load.light.proposer",
        None,
    ),
    ({"policies": {"auto": {"min_gain": 1e9}}}, "policies.auto.min_gain", None),
    ({"policies": {"load": LIGHT, "auto": {"gain": 1}}}, "policies.auto.gain", None),
    ({"policies": {"load": LIGHT}, "rules": [{"name": "a"}]}, "rules.0.use",
     "missing_required_parameter"),
    ({"rules": {}}, "rules", None),
    ({"rules": [rule("a", "nobody")]}, "rules.0.use.proposer", "proposer_not_found"),
    ({"rules": [rule("a", "ngram"), rule("a", "ngram")]}, "rules.1.name", None),
    ({"reason": "x" * 201, "rules": []}, "reason", TOO_LONG),
]  # fmt: skip


async def test_an_invalid_change_names_its_field_and_changes_nothing(gateway: Gateway) -> None:
    before = await put(gateway, policies={"load": LIGHT}, rules=[rule("kept", "ngram", model="x")])
    for body, param, code in INVALID:
        response = await gateway.client.put(POLICY, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, param, code), body
        after = await shown(gateway)
        for key in ("policies", "rules", "changes"):
            assert after[key] == before[key], body


async def test_a_rule_that_matches_everything_before_others_is_a_warning(
    gateway: Gateway, tmp_path: Path, start: StartGateway
) -> None:
    path = tmp_path / "audit.jsonl"
    gateway = await start(audit=Audit(str(path)))
    answer = await put(gateway, rules=[rule("all", "ngram"), rule("rest", "draft", model="x")])
    (warning,) = answer["warnings"]
    assert "rest" in warning
    assert "all" in warning
    record = json.loads(path.read_text().splitlines()[-1])
    assert (record["what"], record["warnings"]) == ("spec_policy", [warning])


async def test_if_the_engine_fails_everything_stays(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(gateway, policies={"load": LIGHT}, rules=[rule("kept", "ngram", model="x")])
    before = await shown(gateway)
    real, calls = gateway.engine.set_policy, []

    async def dies_at_the_second(name: str, parameters: Any) -> Any:
        calls.append(name)
        if len(calls) == 2:
            raise EngineDead("The engine died.")
        return await real(name, parameters)

    monkeypatch.setattr(gateway.engine, "set_policy", dies_at_the_second)
    body = {"policies": {"load": {}, "auto": {"min_gain": 0.5}}, "rules": []}
    response = await gateway.client.put(POLICY, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    after = await shown(gateway)
    assert calls == ["load", "auto", "load"], "the first is taken back"
    assert after["rules"] == before["rules"]
    assert [p["parameters"] for p in after["policies"]] == [
        p["parameters"] for p in before["policies"]
    ]
    assert after["changes"][0]["outcome"] == "failed"


async def test_rules_route_requests_that_name_no_proposer(gateway: Gateway) -> None:
    await put(
        gateway,
        rules=[
            rule("header", "suffix", header={"x-app": "chat-*"}),
            rule("cold", "none", temperature={"max": 0}),
            rule("long", "auto", prompt_tokens={"min": 20}),
        ],
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({"headers": {"X-App": "chat-web"}}, "suffix"),
        ({"headers": {"X-App": "batch"}}, "draft"),
    ]
    for options, name in cases:
        response = await gateway.post(
            "/v1/completions", {"prompt": "a", "max_tokens": 1}, **options
        )
        assert response.headers[HEADER] == name
    for fields, name in (
        ({"temperature": 0}, "none"),
        ({"prompt": list(range(10, 40))}, "auto"),
        ({"prompt": list(range(10, 40)), "num_speculative_tokens": 2}, "auto"),
        ({"temperature": 0, "speculative_model": "ngram"}, "ngram"),
        ({}, "draft"),
    ):
        response = await gateway.complete(max_tokens=1, **fields)
        assert response.headers[HEADER] == name, fields
    for name, count in (("header", 1), ("cold", 1), ("long", 2)):
        assert gateway.sample("specgate_routing_rule_matches_total", rule=name) == count
    requests = "specgate_requests_total"
    assert gateway.sample(requests, proposer="suffix", selected_by="rule") == 1
    assert gateway.sample(requests, proposer="auto", selected_by="request") == 1


async def test_a_switch_does_not_move_a_routed_request(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 20})
    await put(gateway, rules=[rule("all", "ngram")])
    exchange = gateway.exchange("/v1/completions", {"prompt": "a", "max_tokens": 1000})
    task = exchange.begin()
    async with asyncio.timeout(30):
        while not gateway.engine.num_running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await gateway.post("/v1/switch_spec_method", {"speculative_model": "none"})
    assert dict(gateway.runtime.switcher.in_flight.by_proposer) == {"ngram": 1}
    exchange.leave()
    await task


async def test_the_name_of_the_api_key_is_matched(start: StartGateway) -> None:
    gateway = await start(
        api_key=["plain"],
        admin_key=["admin"],
        named_api_key={"team-a": "sk=a=="},
        routing_rules=[rule("team", "ngram", api_key="team-a")],
    )
    for key, name in (("sk=a==", "ngram"), ("plain", "draft"), ("admin", "draft")):
        headers = {"Authorization": f"Bearer {key}"}
        body = {"prompt": "a", "max_tokens": 1}
        response = await gateway.post("/v1/completions", body, headers=headers)
        assert (response.status_code, response.headers[HEADER]) == (200, name)
    headers = {"Authorization": "Bearer team-a=sk=a=="}
    response = await gateway.post("/v1/completions", {"prompt": "a"}, headers=headers)
    assert response.status_code == 401


@pytest.mark.parametrize("stream", [False, True])
async def test_the_overlap_of_answers_is_learned(start: StartGateway, stream: bool) -> None:
    gateway = await start(routing_rules=[rule("quotes", "ngram", overlap={"max": 0.5})])
    first = await gateway.complete(max_tokens=50, stream=stream)
    assert first.headers[HEADER] == "draft", "not known yet"
    assert (await shown(gateway))["rules"][0]["answers"] == 1
    assert (await gateway.complete(max_tokens=1)).headers[HEADER] == "ngram"


async def test_the_overlap_of_a_chat_is_that_of_its_earlier_answers(start: StartGateway) -> None:
    gateway = await start(routing_rules=[rule("quotes", "ngram", overlap={"min": 0.8})])
    quote = "def parse_date(text): return the date that the text contains"
    for answer, name in ((quote, "ngram"), ("Certainly not.", "draft")):
        messages = [
            {"role": "user", "content": quote},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "Again."},
        ]
        body = {"messages": messages, "max_tokens": 1}
        response = await gateway.post("/v1/chat/completions", body)
        assert response.headers[HEADER] == name


async def test_an_unloaded_proposer_of_a_rule_and_a_policy_is_not_an_error(
    start: StartGateway,
) -> None:
    gateway = await start(spec_method="load", routing_rules=[rule("a", "ngram", structured=False)])
    await put(gateway, policies={"load": LIGHT})
    unloaded = await gateway.post("/v1/unload_proposer", {"name": "ngram"})
    assert unloaded.status_code == 200
    response = await gateway.complete(max_tokens=20, ignore_eos=True)
    assert (response.status_code, response.headers[HEADER]) == (200, "load")
    assert response.json()["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    assert gateway.sample("specgate_routing_rule_skips_total", rule="a") == 1
    assert (await gateway.client.get(POLICY)).status_code == 200
    loaded = await gateway.post("/v1/load_proposer", {"name": "ngram"})
    assert loaded.status_code == 200
    assert (await gateway.complete(max_tokens=2)).headers[HEADER] == "ngram"
    assert "nan" not in (await gateway.client.get("/metrics")).text.lower()


async def test_a_policy_without_proposers_decodes_plainly(start: StartGateway) -> None:
    gateway = await start(proposer=[], spec_method="auto", primary=None, backup=None)
    response = await gateway.complete(max_tokens=20, ignore_eos=True)
    assert (response.status_code, response.headers[HEADER]) == (200, "auto")


async def explain(gateway: Gateway, **body: Any) -> dict[str, Any]:
    response = await gateway.post("/v1/explain", body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_choice_is_explained_without_generating(gateway: Gateway) -> None:
    rules = [
        rule("long", "ngram", prompt_tokens={"min": 20}),
        rule("app", "auto", header={"x": "*"}),
    ]
    await put(gateway, rules=rules)
    body = {"prompt": "a"}
    active = await explain(gateway, completion=body)
    assert (active["spec_method"], active["selected_by"], active["rule"]) == (
        "draft",
        "active",
        None,
    )
    assert [(one["rule"], one["matches"]) for one in active["rules"]] == [
        ("long", False),
        ("app", False),
    ]
    assert "below 20" in active["rules"][0]["why"]
    routed = await explain(gateway, completion=body, headers={"X": "y"})
    assert (routed["spec_method"], routed["selected_by"], routed["rule"]) == (
        "auto",
        "rule",
        "app",
    )
    assert routed["policy"]["name"] == "auto"
    own = await explain(gateway, completion={**body, "speculative_model": "none"})
    assert (own["spec_method"], own["selected_by"], own["policy"]) == ("none", "request", None)
    capped = await explain(
        gateway, completion={**body, "num_speculative_tokens": 1}, headers={"x": "y"}
    )
    assert (capped["num_speculative_tokens"], capped["rule"]) == (1, "app")
    chat = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
    assert (await explain(gateway, chat=chat))["request"]["temperature"] == 0
    assert gateway.sample("specgate_routing_rule_matches_total", rule="app") == 0
    assert gateway.sample("specgate_requests_total", proposer="draft", selected_by="active") == 0
    assert gateway.engine.num_running == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"chat": {"messages": []}}, "chat.messages"),
        ({"completion": {"prompt": "a", "temperature": 5}}, "completion.temperature"),
        ({"completion": {"prompt": "a", "speculative_model": "nobody"}}, "speculative_model"),
        ({"completion": {"prompt": "a"}, "headers": {"x": 5}}, "headers.x"),
        ({"completion": {"prompt": "a"}, "key": "x"}, "key"),
    ],
)
async def test_what_the_request_itself_would_be_refused_for_is_a_400(
    gateway: Gateway, body: dict[str, Any], param: str | None
) -> None:
    response = await gateway.post("/v1/explain", body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
