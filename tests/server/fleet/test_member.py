"""A server's part in its fleet: it goes to the largest state that it was told, now or later."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine_adapter.seam.errors import EngineError
from engine_adapter.seam.types import ProposerState
from server.control.method_names import MethodRequest
from server.control.records import SpecMethodBody
from server.fleet import member as module
from server.fleet.desired import DesiredState
from server.fleet.member import Member
from server.fleet.replica import FleetSwitch, Obstacle, ReplicaState, Way
from tests.server.conftest import StartGateway
from tests.server.fleet.gate import Gate
from tests.server.fleet.in_flight import begun
from tests.server.gateway import Gateway, eventually

NGRAM = DesiredState(3, "ngram", 5)
SUFFIX = DesiredState(4, "suffix", 6)
IMMEDIATE = Way("immediate", reason="a test")
DRAIN = Way("drain", 600)
LOAD = {"load": {"disable_by_batch_size": 3}}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lags tries again at once."""
    monkeypatch.setattr(module, "RETRY_S", 0.002)
    monkeypatch.setattr(module, "MAX_RETRY_S", 0.002)


def member(gateway: Gateway) -> Member:
    return gateway.runtime.fleet


def active(gateway: Gateway) -> tuple[str, int]:
    state = member(gateway).state()
    return state.active.spec_method, state.fleet.generation


def records(gateway: Gateway) -> list[tuple[str, int | None]]:
    return [(str(r.outcome), r.fleet_generation) for r in gateway.runtime.audit.switches]


def lag(gateway: Gateway) -> str | None:
    found = member(gateway).status().lag
    return None if found is None else found.code


async def test_a_state_is_taken_with_the_switch_that_it_asks_for(gateway: Gateway) -> None:
    state = await member(gateway).set(NGRAM, IMMEDIATE)
    assert state.switch is not None
    assert (state.switch.previous.spec_method, state.active.spec_method) == ("draft", "ngram")
    assert (state.switch.mode, state.switch.fleet_generation) == ("immediate", 3)
    assert (state.fleet.desired, state.fleet.lag) == (NGRAM, None)
    assert active(gateway) == ("ngram", 3)
    assert records(gateway) == [("switched", 3)]
    assert gateway.runtime.audit.switches[0].reason == "a test"
    assert gateway.sample("specgate_fleet_generation") == 3


async def test_a_repeated_state_gets_the_same_answer_and_no_second_switch(
    gateway: Gateway,
) -> None:
    first = await member(gateway).set(NGRAM, IMMEDIATE)
    assert await member(gateway).set(NGRAM, IMMEDIATE) == first
    assert len(records(gateway)) == 1


@pytest.mark.parametrize("older", [replace(NGRAM, generation=2), DesiredState(3, "draft", 4)])
async def test_a_smaller_state_changes_nothing(gateway: Gateway, older: DesiredState) -> None:
    await member(gateway).set(NGRAM)
    state = await member(gateway).set(older)
    assert (state.fleet.desired, state.switch) == (NGRAM, None)
    assert active(gateway) == ("ngram", 3)


async def test_of_two_states_with_a_number_all_servers_take_the_same(start: StartGateway) -> None:
    """Whichever of them comes first."""
    other = DesiredState(3, "draft", 4, LOAD)
    one, two = await start(), await start()
    await member(one).set(NGRAM)
    await member(one).set(other)
    await member(two).set(other)
    await member(two).set(NGRAM)
    assert active(one) == active(two) == ("ngram", 3)
    assert member(one).desired == member(two).desired


async def test_a_server_without_the_proposer_lags_and_follows_when_it_is_loaded(
    gateway: Gateway,
) -> None:
    await gateway.engine.unload_proposer("ngram")
    with capture_logs() as logs:
        state = await member(gateway).set(NGRAM, IMMEDIATE)
        assert state.fleet.lag is not None
        assert state.fleet.lag.code == "proposer_not_found"
        assert "ngram" in state.fleet.lag.message
        assert (state.fleet.desired, state.fleet.generation, state.switch) == (NGRAM, 0, None)
        shown = (await gateway.client.get("/v1/spec_method")).json()["fleet"]
        assert shown["lag"]["code"] == "proposer_not_found"
        assert shown["desired"]["spec_method"] == "ngram"
        await asyncio.sleep(0.05)
    lines = [line for line in logs if line["event"] == "fleet_lags"]
    assert [line["spec_method"] for line in lines] == ["ngram"], "each reason is logged once"
    await gateway.engine.load_proposer({"name": "ngram", "method": "ngram"})
    await eventually(lambda: active(gateway) == ("ngram", 3))
    assert lag(gateway) is None
    assert gateway.runtime.audit.switches[0].mode == "new_requests"


async def test_a_server_that_lags_tries_less_and_less_often(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 1000.0)
    monkeypatch.setattr(module, "MAX_RETRY_S", 3000.0)
    pauses = []

    async def shorter(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0.001)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": shorter}))
    await gateway.engine.unload_proposer("ngram")
    await member(gateway).set(NGRAM)
    await eventually(lambda: len(pauses) >= 4)
    assert pauses[:4] == [1000.0, 2000.0, 3000.0, 3000.0]


async def test_tries_that_cannot_succeed_leave_one_record(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    switcher = gateway.runtime.switcher
    loaded = switcher._loaded_proposers
    tries = 0

    def without_ngram() -> Any:
        nonlocal tries
        tries += 1
        now = loaded()
        spoilt = (
            replace(p, state=ProposerState.QUARANTINED) for p in now.proposers if p.name == "ngram"
        )
        others = (p for p in now.proposers if p.name != "ngram")
        return replace(now, proposers=(*spoilt, *others))

    monkeypatch.setattr(switcher, "_loaded_proposers", without_ngram)
    state = await member(gateway).set(NGRAM)
    assert state.fleet.lag is not None
    assert state.fleet.lag.code == "proposer_quarantined"
    before = tries
    await eventually(lambda: tries > before + 5)
    assert records(gateway) == [("refused", 3)]
    monkeypatch.undo()
    await eventually(lambda: active(gateway) == ("ngram", 3))


async def test_a_switch_of_this_server_alone_lasts_until_the_next_state(gateway: Gateway) -> None:
    await member(gateway).set(NGRAM)
    await gateway.runtime.switcher.switch(MethodRequest("draft", None, True))
    assert active(gateway) == ("draft", 3)
    await member(gateway).set(NGRAM)
    assert (active(gateway), lag(gateway)) == (("draft", 3), None)
    await member(gateway).set(SUFFIX)
    assert active(gateway) == ("suffix", 4)


async def test_a_state_that_comes_during_a_switch_of_this_server_waits_for_it(
    start: StartGateway,
) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    request, let_it_end = await begun(gateway)
    own = gateway.runtime.switcher.switch(MethodRequest("suffix", None, True), "drain")
    switching = asyncio.create_task(own)
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    state = await member(gateway).set(NGRAM, IMMEDIATE)
    assert state.fleet.lag is not None
    assert state.fleet.lag.code == "switch_in_progress"
    let_it_end()
    await asyncio.gather(request, switching)
    await eventually(lambda: active(gateway) == ("ngram", 3))


async def test_a_larger_state_ends_the_drain_of_a_smaller_one(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    request, let_it_end = await begun(gateway)
    smaller = asyncio.create_task(member(gateway).set(NGRAM, DRAIN))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    larger = await member(gateway).set(SUFFIX, IMMEDIATE)
    assert (larger.active.spec_method, larger.fleet.generation) == ("suffix", 4)
    state = await smaller
    assert (state.fleet.desired, state.switch) == (SUFFIX, None)
    assert records(gateway) == [("switched", 4), ("abandoned", 3)]
    let_it_end()
    assert (await request).status_code == 200


async def test_a_caller_that_leaves_ends_no_drain(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    request, let_it_end = await begun(gateway)
    calling = asyncio.create_task(member(gateway).set(NGRAM, DRAIN))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    again = asyncio.create_task(member(gateway).set(NGRAM, DRAIN))
    await asyncio.sleep(0)
    assert gateway.runtime.switcher.drain is not None
    let_it_end()
    assert (await request).status_code == 200
    assert (await again).switch is not None
    assert records(gateway) == [("switched", 3)]


async def test_a_drain_that_is_too_long_lags_and_follows_without_one(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.2)
    gateway = await start(engine_args={"fake_step_ms": 5})
    request, let_it_end = await begun(gateway)
    state = await member(gateway).set(replace(NGRAM, policies=LOAD), Way("drain", 0.01))
    assert state.fleet.lag is not None
    assert state.fleet.lag.code == "drain_timeout"
    await eventually(lambda: active(gateway) == ("ngram", 3))
    assert not request.done(), "the request keeps its method"
    let_it_end()
    assert (await request).status_code == 200
    assert records(gateway) == [("switched", 3), ("timed_out", 3)]


async def test_a_state_after_a_drain_that_was_too_long_is_set_again_at_once(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 600.0)
    gateway = await start(engine_args={"fake_step_ms": 5})
    request, let_it_end = await begun(gateway)
    assert (await member(gateway).set(NGRAM, Way("drain", 0.01))).switch is None
    assert (await member(gateway).set(NGRAM, IMMEDIATE)).switch is not None
    let_it_end()
    await request


async def test_a_swap_that_has_begun_ends_before_the_next_one(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(gateway.engine, "switch", monkeypatch)
    smaller = asyncio.create_task(member(gateway).set(NGRAM))
    await gate.reached.wait()
    larger = asyncio.create_task(member(gateway).set(SUFFIX))
    await asyncio.sleep(0)
    gate.open()
    assert (await larger).switch is not None
    assert (await smaller).switch is None
    assert active(gateway) == ("suffix", 4)
    assert records(gateway) == [("switched", 4), ("switched", 3)]


async def test_policies_are_set_with_the_method_and_only_those_that_differ(
    gateway: Gateway,
) -> None:
    admin, both = gateway.runtime.policy_admin, LOAD | {"auto": {"min_gain": 0.5}}
    before = admin.parameters(["load"])
    await member(gateway).set(replace(NGRAM, policies=LOAD))
    assert admin.parameters(["load"]) != before
    await member(gateway).set(replace(SUFFIX, policies=both))
    changes = gateway.runtime.audit.policy_changes
    assert [change.policies for change in changes] == [{"auto": {"min_gain": 0.5}}, LOAD]
    # What this server alone has set lasts until the next state.
    await admin.change({"load": {}}, None)
    await member(gateway).set(replace(NGRAM, generation=5, policies=both))
    assert admin.parameters(["load"]) != before


async def test_a_policy_that_is_refused_here_does_not_keep_the_method(gateway: Gateway) -> None:
    """A state has the policies of earlier switches, and one can be refused since."""
    admin, policies = gateway.runtime.policy_admin, {"unknown": {"a": 1}} | LOAD
    before = admin.parameters(["load"])
    with capture_logs() as logs:
        await member(gateway).set(replace(NGRAM, policies=policies), IMMEDIATE)
    assert active(gateway) == ("ngram", 3)
    assert lag(gateway) is None
    assert admin.parameters(["load"]) != before
    assert {entry["event"] for entry in logs} >= {"fleet_policy_refused", "fleet_method_taken"}


async def test_a_switch_that_is_refused_changes_no_policy(gateway: Gateway) -> None:
    admin = gateway.runtime.policy_admin
    before = admin.parameters(["load"])
    await member(gateway).set(replace(NGRAM, spec_method="unknown", policies=LOAD), IMMEDIATE)
    assert lag(gateway) is not None
    assert admin.parameters(["load"]) == before


async def test_an_engine_that_fails_lags_until_it_does_not(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: Any, **kwargs: Any) -> None:
        raise EngineError("no")

    monkeypatch.setattr(gateway.engine, "switch", fail)
    with capture_logs() as logs:
        state = await member(gateway).set(NGRAM)
        assert state.fleet.lag is not None
        assert state.active == SpecMethodBody("draft", 4)
        await asyncio.sleep(0.02)
    lines = [line for line in logs if line["event"] == "fleet_lags"]
    assert len(lines) == 1
    assert lines[0]["exc_info"] is not None
    monkeypatch.undo()
    await eventually(lambda: active(gateway) == ("ngram", 3))


async def test_a_dead_engine_follows_when_it_is_back(gateway: Gateway) -> None:
    gateway.engine.die(retry_after_s=0.1)
    state = await member(gateway).set(NGRAM)
    assert state.fleet.lag is not None
    assert state.fleet.lag.code == "engine_dead"


@pytest.mark.parametrize(
    ("fleet_switch", "status", "said"),
    [
        (FleetSwitch("nope"), 404, "nope"),
        (FleetSwitch("ngram", num_speculative_tokens=99), 400, "99"),
        (FleetSwitch("ngram", way=Way("sometimes")), 400, "mode"),
        (FleetSwitch("ngram", policies={"load": {"nope": 1}}), 400, "load.nope"),
        (FleetSwitch("ngram", policies={"nope": {}}), 400, "nope"),
    ],
)
async def test_a_check_says_what_cannot_work(
    gateway: Gateway, fleet_switch: FleetSwitch, status: int, said: str
) -> None:
    refusal = member(gateway).check(fleet_switch).to
    assert isinstance(refusal, Obstacle)
    assert refusal.status == status
    assert said in refusal.message
    assert member(gateway).state() == ReplicaState(
        SpecMethodBody("draft", 4), None, member(gateway).status()
    )


async def test_a_check_says_what_a_switch_would_do_and_does_not_do_it(gateway: Gateway) -> None:
    checked = member(gateway).check(FleetSwitch("[ngram]", 3, {"auto": {"min_gain": 0.5}}))
    assert (checked.active, checked.to) == (SpecMethodBody("draft", 4), SpecMethodBody("ngram", 3))
    assert (active(gateway), records(gateway)) == (("draft", 0), [])
    assert member(gateway).desired is None


async def test_a_server_that_stops_ends_its_switch_and_says_so(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    request, let_it_end = await begun(gateway)
    setting = asyncio.create_task(member(gateway).set(NGRAM, DRAIN))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    assert lag(gateway) == "switch_in_progress"
    await member(gateway).close()
    state = await setting
    assert state.switch is None
    assert state.fleet.lag == module.SWITCHING
    let_it_end()
    await request


async def test_a_server_that_stops_tries_no_more(start: StartGateway) -> None:
    gateway = await start()
    await gateway.engine.unload_proposer("ngram")
    await member(gateway).set(NGRAM)
    await member(gateway).close()
    await gateway.engine.load_proposer({"name": "ngram", "method": "ngram"})
    await asyncio.sleep(0.02)
    assert active(gateway) == ("draft", 0)
