"""Loading and unloading proposers over HTTP, on the fake engine."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from engine_adapter.seam.counts import StepKind, StepReport
from engine_adapter.seam.types import ProposerState
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

LOOKUP = {"name": "lookup", "method": "ngram", "num_speculative_tokens": 3}
MISSING, UNKNOWN = "missing_required_parameter", "unknown_parameter"
COMPLETION = {"model": "specgate-demo", "prompt": "def f():", "max_tokens": 8}


async def load(gateway: Gateway, **fields: Any) -> httpx.Response:
    return await gateway.post("/v1/load_proposer", fields)


async def unload(gateway: Gateway, name: Any) -> httpx.Response:
    return await gateway.post("/v1/unload_proposer", {"name": name})


async def names(gateway: Gateway) -> dict[str, str]:
    """Name -> state of every shown proposer."""
    body = (await gateway.client.get("/v1/proposers")).json()
    return {proposer["name"]: proposer["state"] for proposer in body["data"]}


async def test_a_loaded_proposer_is_shown_selected_switched_to_and_counted(
    gateway: Gateway,
) -> None:
    response = await load(gateway, **LOOKUP, prompt_lookup_max=3)
    assert response.status_code == 200
    assert response.json().items() >= {**LOOKUP, "state": "loaded", "model": None}.items()
    assert list(await names(gateway))[-1] == "lookup"
    assert gateway.sample("specgate_spec_decode_drafts_total", proposer="lookup") == 0
    assert gateway.sample("specgate_proposer_errors_total", proposer="lookup") == 0
    answer = await gateway.complete(spec_decode={"proposer": "lookup"}, max_tokens=20)
    assert answer.headers["x-specgate-spec-method"] == "lookup"
    await gateway.post("/v1/switch_spec_method", {"speculative_model": "lookup"})
    answer = await gateway.complete()
    assert answer.headers["x-specgate-spec-method"] == "lookup"


async def test_an_unloaded_proposer_cannot_be_selected_until_reloaded(gateway: Gateway) -> None:
    response = await unload(gateway, "suffix")
    assert response.json() == {"object": "proposer", "name": "suffix", "unloaded": True}
    assert "suffix" not in await names(gateway)
    refused = await gateway.complete(spec_decode={"proposer": "suffix"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "proposer_not_found"
    figures = (await gateway.client.get("/v1/spec_method")).json()["proposers"]
    assert "suffix" not in figures
    assert (await load(gateway, name="suffix")).status_code == 200
    assert (await gateway.complete(spec_decode={"proposer": "suffix"})).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "param", "code", "reason"),
    [
        ({"name": "a b", "method": "ngram"}, 400, "name", None, "must match"),
        ({"method": "ngram"}, 400, "name", MISSING, "required"),
        ({"name": "x", "method": "nothing"}, 400, "method", None, "there are"),
        ({"name": "x", "method": "ngram", "beam": 2}, 400, "beam", UNKNOWN, "no such field"),
        ({**LOOKUP, "prompt_lookup_min": 0}, 400, "prompt_lookup_min", None, "at least 1"),
        (
            {**LOOKUP, "num_speculative_tokens": 9},
            400,
            "num_speculative_tokens",
            None,
            "--max-speculative-tokens",
        ),
        ({"name": "x", "method": "medusa"}, 400, "model", MISSING, "needs the path"),
        ({"name": "c", "method": "cascade", "members": ["ngram"]}, 400, "members", None, "two"),
        ({"name": "ngram"}, 409, "name", "proposer_exists", "already"),
    ],
)
async def test_an_invalid_load_is_refused_and_changes_nothing(
    gateway: Gateway,
    fields: dict[str, Any],
    status: int,
    param: str,
    code: str | None,
    reason: str,
) -> None:
    before = await names(gateway)
    response = await load(gateway, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    assert reason in error["message"]
    assert await names(gateway) == before


async def test_a_model_that_only_a_start_can_load_is_refused(start: StartGateway) -> None:
    gateway = await start(allowed_hub_id=("a/b",))
    response = await load(gateway, name="x", method="draft_model", model="a/b")
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (409, "name", "needs_restart")
    assert "--proposer" in error["message"]


@pytest.mark.parametrize("body", [[], "ngram", None, 5])
async def test_a_body_that_is_not_an_object_is_a_400(gateway: Gateway, body: Any) -> None:
    assert (await gateway.post("/v1/load_proposer", body)).status_code == 400


@pytest.mark.parametrize("body", [{}, {"name": 5}, {"name": "ngram", "force": True}])
async def test_an_unload_takes_a_name_and_nothing_else(gateway: Gateway, body: Any) -> None:
    assert (await gateway.post("/v1/unload_proposer", body)).status_code == 400


async def test_an_unusable_checkpoint_leaves_no_traces(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_fail_load": "config.json: hidden_size must be 64"})
    before = await names(gateway)
    response = await load(gateway, **LOOKUP)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "model")
    assert "config.json: hidden_size must be 64" in error["message"]
    assert await names(gateway) == before
    assert (await load(gateway, **LOOKUP)).status_code == 400, "it can be tried again"


async def test_a_loading_proposer_is_shown_and_cannot_be_selected(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_load_s": 1.0})
    loading = asyncio.create_task(load(gateway, **LOOKUP))
    await eventually(lambda: gateway.engine._proposer_registry.loading is not None)
    assert (await names(gateway))["lookup"] == "loading"
    refused = await gateway.complete(spec_decode={"proposer": "lookup"})
    assert refused.json()["error"]["code"] == "proposer_not_found"
    for change in (load(gateway, name="other", method="ngram"), unload(gateway, "suffix")):
        response = await change
        assert response.status_code == 409
        assert response.json()["error"]["code"] == "load_in_progress"
    switched = await gateway.post("/v1/switch_spec_method", {"speculative_model": "none"})
    assert switched.status_code == 200, "a switch does not wait for a load"
    assert (await loading).status_code == 200
    assert (await names(gateway))["lookup"] == "loaded"


async def test_a_callers_disconnect_does_not_stop_a_load(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_load_s": 0.5})
    exchange = gateway.exchange("/v1/load_proposer", LOOKUP)
    task = exchange.begin()
    await eventually(lambda: gateway.engine._proposer_registry.loading is not None)
    exchange.leave()
    task.cancel()
    await eventually(lambda: bool(gateway.state.audit.proposer_changes))
    assert (await names(gateway))["lookup"] == "loaded"
    assert [change.outcome for change in gateway.state.audit.proposer_changes] == ["loaded"]


async def test_the_active_proposer_is_not_unloaded(gateway: Gateway) -> None:
    response = await unload(gateway, "draft")
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "proposer_in_use"
    assert "draft" in await names(gateway)


async def test_a_proposer_in_flight_is_not_unloaded_until_its_requests_end(
    start: StartGateway,
) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    body = {"spec_decode": {"proposer": "suffix"}, "max_tokens": 1000, "ignore_eos": True}
    exchange = gateway.exchange("/v1/completions", {**COMPLETION, **body})
    running = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    response = await unload(gateway, "suffix")
    assert response.json()["error"]["code"] == "proposer_in_use"
    exchange.leave()
    await running
    assert (await unload(gateway, "suffix")).status_code == 200


async def test_a_cascades_member_is_not_unloaded_before_it(gateway: Gateway) -> None:
    assert (await load(gateway, name="cascade", members=["ngram", "draft"])).status_code == 200
    response = await unload(gateway, "ngram")
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "proposer_in_use"
    assert "'cascade'" in response.json()["error"]["message"]
    assert (await unload(gateway, "cascade")).status_code == 200
    assert (await unload(gateway, "ngram")).status_code == 200


async def test_nothing_is_unloaded_while_a_switch_runs(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    exchange = gateway.exchange("/v1/completions", {**COMPLETION, "max_tokens": 1000})
    running = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    body = {"speculative_model": "suffix", "mode": "drain", "timeout_s": 30}
    draining = asyncio.create_task(gateway.post("/v1/switch_spec_method", body))
    await eventually(lambda: gateway.runtime.switcher.busy)
    response = await unload(gateway, "suffix")
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "switch_in_progress"
    exchange.leave()
    await running
    assert (await draining).status_code == 200


async def test_unloading_an_unknown_proposer_is_a_404(gateway: Gateway) -> None:
    response = await unload(gateway, "nope")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "proposer_not_found"


@pytest.mark.parametrize("call", ["load", "unload"])
async def test_a_dead_engine_changes_nothing(start: StartGateway, call: str) -> None:
    gateway = await start(engine_args={"fake_die_at_call": call})
    response = await (load(gateway, **LOOKUP) if call == "load" else unload(gateway, "suffix"))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_dead"
    assert gateway.state.audit.proposer_changes[0].outcome == "failed"
    assert {p.name for p in gateway.engine.info.proposers} >= {"suffix", "draft"}
    assert "lookup" not in {p.name for p in gateway.engine.info.proposers}


async def test_every_requested_change_is_recorded(gateway: Gateway) -> None:
    with capture_logs() as logs:
        await load(gateway, **LOOKUP)
        await unload(gateway, "draft")
        await unload(gateway, "lookup")
        await load(gateway, name="lookup", method="ngram", num_speculative_tokens=99)
    changes = (await gateway.client.get("/v1/proposers")).json()["changes"]
    assert [(c["what"], c["proposer"], c["outcome"]) for c in changes] == [
        ("load_proposer", "lookup", "failed"),
        ("unload_proposer", "lookup", "unloaded"),
        ("unload_proposer", "draft", "refused"),
        ("load_proposer", "lookup", "loaded"),
    ]
    assert "active method" in changes[2]["error"]
    assert changes[3]["error"] is None
    assert all(c["who"] == "loopback" and c["took_ms"] >= 0 for c in changes)
    assert len([entry for entry in logs if entry["event"] == "admin_change"]) == 4
    assert (await gateway.client.get("/v1/spec_method")).json()["switches"] == []


def quarantine(gateway: Gateway, name: str) -> None:
    """Makes the engine report a fault that quarantines a proposer."""
    report = StepReport(
        StepKind.DECODE, 0.01, {}, {}, {}, {}, {name: "ValueError: broken"}, (name,)
    )
    gateway.engine._proposer_registry.record_step(report)
    gateway.state.metrics.on_step(report)


async def test_a_quarantined_proposer_is_shown_and_refused_to_switches_only(
    gateway: Gateway,
) -> None:
    quarantine(gateway, "suffix")
    shown = (await gateway.client.get("/v1/proposers")).json()["data"]
    (suffix,) = (p for p in shown if p["name"] == "suffix")
    assert (suffix["state"], suffix["last_error"]) == ("quarantined", "ValueError: broken")
    assert gateway.sample("specgate_proposer_errors_total", proposer="suffix") == 1
    response = await gateway.post("/v1/switch_spec_method", {"speculative_model": "suffix"})
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "proposer_quarantined"
    assert gateway.state.audit.switches[0].outcome == "refused"
    assert (await gateway.complete(spec_decode={"proposer": "suffix"})).status_code == 200
    await unload(gateway, "suffix")
    await load(gateway, name="suffix")
    response = await gateway.post("/v1/switch_spec_method", {"speculative_model": "suffix"})
    assert response.status_code == 200


def test_a_quarantine_does_not_affect_other_proposers(gateway: Gateway) -> None:
    before = gateway.engine.info.proposers
    quarantine(gateway, "suffix")
    after = gateway.engine.info.proposers
    for old, new in zip(before, after, strict=True):
        expected = replace(old, state=ProposerState.QUARANTINED, last_error="ValueError: broken")
        assert new == (expected if old.name == "suffix" else old)
