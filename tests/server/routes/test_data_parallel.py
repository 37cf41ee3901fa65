"""A server with several engines: its probes, its routes and its metrics."""

import asyncio
from typing import Any, cast

import pytest

from engine_adapter.data_parallel.engine import DataParallelEngine
from engine_adapter.fake.engine import FakeEngine
from engine_adapter.seam.counts import StepKind, StepReport
from engine_adapter.seam.errors import EngineError
from tests.engine_adapter.data_parallel.fleet import fails_once
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually


@pytest.fixture
async def two(start: StartGateway) -> Gateway:
    """The demo's settings with two fake engines."""
    return await start(data_parallel_size=2)


def ranks(gateway: Gateway) -> list[FakeEngine]:
    engine = cast(DataParallelEngine, gateway.engine)
    return [cast(FakeEngine, rank.engine) for rank in engine._ranks]


async def get(gateway: Gateway, path: str) -> Any:
    response = await gateway.client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def test_probes_say_which_engines_serve(two: Gateway) -> None:
    both = ["serving", "serving"]
    assert await get(two, "/health") == {"status": "ok", "engines": both}
    assert await get(two, "/ready") == {"status": "ready", "engines": both}
    ranks(two)[0].die("killed by signal 9", 60.0)
    assert await get(two, "/ready") == {"status": "ready", "engines": ["restarting", "serving"]}
    ranks(two)[1].die("killed by signal 9", 3.1)
    for path in ("/health", "/ready"):
        response = await two.client.get(path)
        assert (response.status_code, response.headers["retry-after"]) == (503, "4")
        message = "None of the 2 engines serves. Engine 1: The engine died: killed by signal 9."
        assert response.json()["error"]["message"] == message


async def test_the_spec_method_has_the_state_of_each_engine(two: Gateway) -> None:
    serving = {"state": "serving", "reason": None, "retry_after_s": None}
    assert (await get(two, "/v1/spec_method"))["engines"] == [serving, serving]
    ranks(two)[1].die("killed", 3.0)
    shown = await get(two, "/v1/spec_method")
    assert shown["engine"] == serving
    assert shown["engines"] == [
        serving,
        {"state": "restarting", "reason": "The engine died: killed.", "retry_after_s": 3.0},
    ]


async def test_one_engine_is_a_list_of_one(gateway: Gateway) -> None:
    shown = await get(gateway, "/v1/spec_method")
    assert shown["engines"] == [shown["engine"]]


async def test_a_lost_request_can_be_sent_again_at_once(start: StartGateway) -> None:
    two = await start(data_parallel_size=2, engine_args={"fake_step_ms": 5})
    waiting = asyncio.create_task(two.complete(max_tokens=500, ignore_eos=True))
    await eventually(lambda: any(rank.num_running for rank in ranks(two)))
    (busy,) = [rank for rank in ranks(two) if rank.num_running]
    busy.die("killed", 60.0)
    lost = await waiting
    assert (lost.status_code, lost.headers["retry-after"]) == (503, "1")
    assert lost.json()["error"]["code"] == "engine_dead"
    assert (await two.complete(max_tokens=3)).status_code == 200


async def test_slots_are_those_of_all_engines(start: StartGateway) -> None:
    one = await start(max_num_seqs=8)
    two = await start(max_num_seqs=8, data_parallel_size=2)
    slots = [gateway.sample("specgate_slots") for gateway in (one, two)]
    assert slots == [10, 20]


async def test_a_switch_that_one_engine_refuses_leaves_the_method(two: Gateway) -> None:
    before = await get(two, "/v1/spec_method")
    fails_once(ranks(two)[1], "switch", EngineError("broken"))
    response = await two.post("/v1/switch_spec_method", {"speculative_model": "ngram"})
    assert response.status_code == 500
    after = await get(two, "/v1/spec_method")
    assert after["spec_method"] == before["spec_method"] != "ngram"
    assert after["switches"][0]["outcome"] == "failed"
    response = await two.post("/v1/switch_spec_method", {"speculative_model": "ngram"})
    assert response.status_code == 200
    assert (await get(two, "/v1/spec_method"))["spec_method"] == "ngram"


async def test_a_server_with_an_engine_that_is_given_up_says_so(two: Gateway) -> None:
    async def gauges() -> tuple[float | None, ...]:
        await two.client.get("/metrics")
        return tuple(two.sample(f"specgate_engine_{name}") for name in ("up", "given_up"))

    assert await gauges() == (1, 0)
    ranks(two)[0].die()
    assert await gauges() == (1, 1)
    ranks(two)[1].die()
    assert await gauges() == (0, 1)


async def test_a_server_is_given_up_with_its_last_engine(two: Gateway) -> None:
    """Its orchestrator would otherwise replace a server that serves."""
    assert two.state.why_given_up is None
    ranks(two)[0].die()
    assert two.state.engine_given_up
    assert two.state.why_given_up is None
    ranks(two)[1].die()
    reason = two.state.why_given_up
    assert reason is not None
    assert reason.startswith("None of the 2 engines serves. Engine 0: ")


async def test_counters_are_sums_over_the_engines(two: Gateway) -> None:
    for i in range(4):
        response = await two.complete(prompt=f"def f{i}(x):", max_tokens=30)
        assert response.status_code == 200
    ours = sum(
        sample.value
        for family in two.registry.collect()
        for sample in family.samples
        if sample.name == "specgate_spec_decode_draft_tokens_total"
    )
    engines = {
        sample.labels["engine"]: sample.value
        for family in two.registry.collect()
        for sample in family.samples
        if sample.name == "vllm:spec_decode_num_draft_tokens_total"
    }
    assert set(engines) == {"0", "1"}
    assert all(engines.values())
    assert ours == sum(engines.values())


async def test_a_proposer_that_is_quarantined_at_one_engine_is_shown_and_not_switched_to(
    two: Gateway,
) -> None:
    fault = StepReport(StepKind.DECODE, 0.01, {}, {}, {}, {}, {"suffix": "why"}, ("suffix",))
    ranks(two)[1]._proposer_registry.record_step(fault)
    await two.client.get("/metrics")
    assert two.sample("specgate_proposer_quarantined", proposer="suffix") == 1
    response = await two.post("/v1/switch_spec_method", {"speculative_model": "suffix"})
    assert response.status_code == 409
    # The restart of the other engine does not end it.
    ranks(two)[0]._lifetime._on_restart(True)
    await two.client.get("/metrics")
    assert two.sample("specgate_proposer_quarantined", proposer="suffix") == 1
