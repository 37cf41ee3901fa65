"""The three calls of a fleet switch over HTTP, and their refusals."""

import asyncio
from typing import Any

import httpx
import pytest

from server.control.method_names import MethodRequest
from server.fleet.replica import Order
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

PREPARE, COMMIT, ROLLBACK = "/v1/prepare_switch", "/v1/commit_switch", "/v1/rollback_switch"
NGRAM = {"switch_id": "a", "speculative_model": "ngram", "lease_s": 300}


def code(response: httpx.Response) -> tuple[int, Any]:
    return response.status_code, response.json()["error"]["code"]


async def test_prepare_commit_and_roll_back(gateway: Gateway) -> None:
    draft, ngram = ({"spec_method": n, "num_speculative_tokens": k} for n, k in DRAFT_AND_NGRAM)
    prepared = await gateway.post(PREPARE, NGRAM | {"num_speculative_tokens": 3})
    assert prepared.json() == {"fleet_generation": 0, "active": draft, "to": ngram}
    shown = (await gateway.client.get("/v1/spec_method")).json()
    assert shown["fleet"] == {"generation": 0, "switching": True, "policies": {}}
    committed = (await gateway.post(COMMIT, {"switch_id": "a", "generation": 4})).json()
    assert (committed["previous"], committed["active"]) == (draft, ngram)
    assert (committed["fleet_generation"], committed["generation"]) == (4, 1)
    restored = await gateway.post(ROLLBACK, {"switch_id": "a", "generation": 5})
    assert restored.json() == {
        "fleet_generation": 5,
        "active": draft,
        "is_switching": False,
        "policies": {},
        "kept_policies": [],
    }
    shown = (await gateway.client.get("/v1/spec_method")).json()
    assert [one["fleet_generation"] for one in shown["switches"]] == [5, 4]


DRAFT_AND_NGRAM = (("draft", 4), ("ngram", 3))


async def test_the_switch_that_a_server_is_reserved_for_is_the_only_one(gateway: Gateway) -> None:
    assert (await gateway.post(PREPARE, NGRAM)).status_code == 200
    in_progress = (409, "switch_in_progress")
    assert code(await gateway.post(PREPARE, NGRAM | {"switch_id": "b"})) == in_progress
    switch = await gateway.post("/v1/switch_spec_method", {"proposer": "suffix"})
    assert code(switch) == in_progress
    other = {"switch_id": "b", "generation": 1}
    assert code(await gateway.post(COMMIT, other)) == (409, "not_prepared")
    assert (await gateway.post(COMMIT, other | {"switch_id": "a"})).status_code == 200
    assert (await gateway.post(PREPARE, NGRAM | {"switch_id": "b"})).status_code == 200
    assert code(await gateway.post(COMMIT, other)) == (409, "stale_generation")


async def test_a_roll_back_that_another_switch_keeps_out_says_so(gateway: Gateway) -> None:
    gateway.runtime.fleet.prepare("a", Order("ngram"), 300)
    await gateway.runtime.fleet.commit("a", 1)
    switcher = gateway.runtime.switcher
    attempt = switcher.prepare(MethodRequest("suffix", None, True))
    refused = await gateway.post(ROLLBACK, {"switch_id": "a", "generation": 2})
    assert code(refused) == (409, "switch_in_progress")
    switcher.abandon(attempt, RuntimeError())
    restored = await gateway.post(ROLLBACK, {"switch_id": "a", "generation": 2})
    assert restored.json()["active"]["spec_method"] == "draft"


async def test_a_proposer_that_is_unloaded_before_the_commit(gateway: Gateway) -> None:
    """The unload had begun before the switch was prepared, and ends only now."""
    assert (await gateway.post(PREPARE, NGRAM)).status_code == 200
    await gateway.engine.unload_proposer("ngram")
    refused = await gateway.post(COMMIT, {"switch_id": "a", "generation": 1})
    assert code(refused) == (404, "proposer_not_found")
    assert gateway.runtime.switcher.active.name == "draft"
    assert not gateway.runtime.switcher.busy


async def test_a_commit_that_the_end_of_the_server_finds_in_its_drain(
    start: StartGateway,
) -> None:
    # A step takes longer than the test.
    gateway = await start(engine_args={"fake_step_ms": 3_600_000})
    running = asyncio.create_task(gateway.complete(max_tokens=1000))
    await eventually(lambda: gateway.engine.num_running == 1)
    await gateway.post(PREPARE, NGRAM | {"mode": "drain", "timeout_s": 3600})
    committing = asyncio.create_task(gateway.post(COMMIT, {"switch_id": "a", "generation": 1}))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    gateway.runtime.switcher.stop()
    refused = await committing
    assert code(refused) == (503, "stopping")
    assert gateway.runtime.switcher.active.name == "draft"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_commit_that_is_rolled_back_meanwhile_says_so(start: StartGateway) -> None:
    # A step takes longer than the test.
    gateway = await start(engine_args={"fake_step_ms": 3_600_000})
    running = asyncio.create_task(gateway.complete(max_tokens=1000))
    await eventually(lambda: gateway.engine.num_running == 1)
    await gateway.post(PREPARE, NGRAM | {"mode": "drain", "timeout_s": 3600})
    committing = asyncio.create_task(gateway.post(COMMIT, {"switch_id": "a", "generation": 1}))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    restored = await gateway.post(ROLLBACK, {"switch_id": "a", "generation": 2})
    assert restored.json()["active"]["spec_method"] == "draft"
    assert code(await committing) == (409, "not_prepared")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_commit_that_drains_too_long_and_one_whose_coordinator_leaves(
    start: StartGateway,
) -> None:
    # A step takes longer than the test.
    gateway = await start(engine_args={"fake_step_ms": 3_600_000})
    running = asyncio.create_task(gateway.complete(max_tokens=1000))
    await eventually(lambda: gateway.engine.num_running == 1)
    drain = NGRAM | {"mode": "drain", "timeout_s": 0.05}
    assert (await gateway.post(PREPARE, drain)).status_code == 200
    late = await gateway.post(COMMIT, {"switch_id": "a", "generation": 1})
    assert code(late) == (504, "drain_timeout")

    await gateway.post(PREPARE, drain | {"switch_id": "b", "timeout_s": 3600})
    commit = gateway.exchange(COMMIT, {"switch_id": "b", "generation": 1})
    ended = commit.begin()
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    commit.leave()
    await ended
    assert gateway.runtime.switcher.drain is None
    assert not gateway.runtime.switcher.busy
    assert gateway.runtime.switcher.active.name == "draft"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PREPARE, {"speculative_model": "ngram"}, "switch_id"),
        (PREPARE, NGRAM | {"switch_id": "a b"}, "switch_id"),
        (PREPARE, NGRAM | {"lease_s": 301}, "lease_s"),
        (PREPARE, NGRAM | {"lease_s": 0}, "lease_s"),
        (PREPARE, {"switch_id": "a"}, "speculative_model"),
        (PREPARE, NGRAM | {"on_timeout": "move"}, "on_timeout"),
        (PREPARE, NGRAM | {"policies": {"load": {"nope": 1}}}, "policies.load.nope"),
        (PREPARE, NGRAM | {"more": 1}, "more"),
        (COMMIT, {"switch_id": "a"}, "generation"),
        (COMMIT, {"switch_id": "a", "generation": 0}, "generation"),
        (COMMIT, {"switch_id": "a", "generation": 10**400}, "generation"),
        (ROLLBACK, {"generation": 1}, "switch_id"),
        (ROLLBACK, {"switch_id": "a", "generation": "1"}, "generation"),
        (ROLLBACK, {"switch_id": "a", "generation": 2**53}, "generation"),
    ],
)
async def test_an_invalid_body_names_its_field(
    gateway: Gateway, path: str, body: dict[str, Any], param: str
) -> None:
    response = await gateway.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not gateway.runtime.switcher.busy


async def test_a_roll_back_names_the_policies_that_were_changed_at_this_server_alone(
    gateway: Gateway,
) -> None:
    load = {"load": {"disable_by_batch_size": 3}}
    assert (await gateway.post(PREPARE, NGRAM | {"policies": load})).status_code == 200
    assert (await gateway.post(COMMIT, {"switch_id": "a", "generation": 1})).status_code == 200
    body = {"policies": {"load": {"disable_by_batch_size": 12}}}
    assert (await gateway.client.put("/v1/spec_policy", json=body)).status_code == 200
    own = gateway.runtime.policy_admin.parameters(["load"])
    restored = await gateway.post(ROLLBACK, {"switch_id": "a", "generation": 2})
    assert restored.json()["kept_policies"] == ["load"]
    assert gateway.runtime.policy_admin.parameters(["load"]) == own
