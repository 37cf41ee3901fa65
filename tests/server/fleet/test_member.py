"""A server's part in a fleet switch: reserved for a lease, one number above its own, undone."""

import asyncio
from typing import Any

import pytest

from engine_adapter.errors import EngineError
from engine_adapter.policies.parameters import PolicyError
from server.control.errors import (
    DrainTimeout,
    NotPrepared,
    StaleGeneration,
    SwitchInProgress,
)
from server.control.method_names import MethodRequest, SelectionError
from server.control.records import SpecMethodBody
from server.fleet.member import Member
from server.fleet.replica import Order, ReplicaState
from tests.server.conftest import StartGateway
from tests.server.fleet.in_flight import begun
from tests.server.gateway import Gateway, eventually

NGRAM = Order("ngram", reason="a test")
LONG_S = 300.0


def member(gateway: Gateway) -> Member:
    return gateway.runtime.fleet


def active(gateway: Gateway) -> tuple[str, int]:
    state = member(gateway).state()
    return state.active.spec_method, state.fleet_generation


def records(gateway: Gateway) -> list[tuple[str, int | None]]:
    return [(str(r.outcome), r.fleet_generation) for r in gateway.runtime.audit.switches]


async def test_a_prepared_switch_happens_at_its_commit(gateway: Gateway) -> None:
    prepared = member(gateway).prepare("a", NGRAM, LONG_S)
    assert (prepared.active.spec_method, prepared.to.spec_method) == ("draft", "ngram")
    assert active(gateway) == ("draft", 0)
    result = await member(gateway).commit("a", 7)
    assert (result.previous.spec_method, result.active.spec_method) == ("draft", "ngram")
    assert result.fleet_generation == 7
    assert active(gateway) == ("ngram", 7)
    assert records(gateway) == [("switched", 7)]
    assert gateway.sample("specgate_fleet_generation") == 7


async def test_a_reserved_server_refuses_every_other_switch(gateway: Gateway) -> None:
    member(gateway).prepare("a", NGRAM, LONG_S)
    with pytest.raises(SwitchInProgress):
        member(gateway).prepare("b", NGRAM, LONG_S)
    with pytest.raises(SwitchInProgress):
        await gateway.runtime.switcher.switch(MethodRequest("suffix", None, True))
    refused = await gateway.post("/v1/unload_proposer", {"name": "ngram"})
    assert refused.json()["error"]["code"] == "switch_in_progress"
    await member(gateway).rollback("a", None)
    await gateway.runtime.switcher.switch(MethodRequest("suffix", None, True))
    assert active(gateway) == ("suffix", 0)


async def test_a_reservation_holds_no_request(gateway: Gateway) -> None:
    member(gateway).prepare("a", Order("ngram", mode="drain"), LONG_S)
    assert gateway.runtime.switcher.drain is None
    assert (await gateway.complete(max_tokens=2)).status_code == 200


async def test_a_reservation_ends_with_its_lease(gateway: Gateway) -> None:
    member(gateway).prepare("a", NGRAM, 0.001)
    await eventually(lambda: not member(gateway).state().is_switching)
    with pytest.raises(NotPrepared):
        await member(gateway).commit("a", 1)
    assert active(gateway) == ("draft", 0)
    record = gateway.runtime.audit.switches[0]
    assert record.outcome == "abandoned"
    assert record.error == "no commit of the fleet switch came within 0.001 s"


async def test_a_second_prepare_renews_the_lease(gateway: Gateway) -> None:
    clock = asyncio.get_running_loop()
    first = member(gateway).prepare("a", NGRAM, 0.05)
    assert member(gateway).prepare("a", NGRAM, LONG_S) == first
    ended = clock.time() + 0.1
    await eventually(lambda: clock.time() > ended)
    await member(gateway).commit("a", 1)


async def test_a_lease_does_not_end_a_commit(start: StartGateway) -> None:
    """The drain of the commit is longer than the lease."""
    gateway = await start(engine_args={"fake_step_ms": 5})
    request, done = await begun(gateway)
    member(gateway).prepare("a", Order("ngram", mode="drain", timeout_s=600), 0.05)
    committing = asyncio.create_task(member(gateway).commit("a", 1))
    clock = asyncio.get_running_loop()
    ended = clock.time() + 0.1
    await eventually(lambda: clock.time() > ended)
    assert not committing.done()
    done()
    await request
    assert (await committing).active.spec_method == "ngram"


@pytest.mark.parametrize("generation", [3, 5])
async def test_an_old_number_is_refused_and_ends_the_reservation(
    gateway: Gateway, generation: int
) -> None:
    member(gateway).prepare("a", NGRAM, LONG_S)
    await member(gateway).commit("a", 5)
    member(gateway).prepare("b", Order("suffix"), LONG_S)
    with pytest.raises(StaleGeneration):
        await member(gateway).commit("b", generation)
    assert active(gateway) == ("ngram", 5)
    assert not member(gateway).state().is_switching


async def test_a_late_coordinator_cannot_undo_a_newer_switch(gateway: Gateway) -> None:
    member(gateway).prepare("old", NGRAM, LONG_S)
    await member(gateway).commit("old", 1)
    member(gateway).prepare("new", Order("suffix"), LONG_S)
    await member(gateway).commit("new", 2)
    assert (await member(gateway).rollback("old", 2)).active.spec_method == "suffix"
    with pytest.raises(NotPrepared):
        await member(gateway).commit("old", 3)
    assert active(gateway) == ("suffix", 2)


async def test_a_repeated_commit_gets_the_same_result(gateway: Gateway) -> None:
    member(gateway).prepare("a", NGRAM, LONG_S)
    first = await member(gateway).commit("a", 1)
    assert await member(gateway).commit("a", 1) == first
    assert len(records(gateway)) == 1


@pytest.mark.parametrize(
    ("order", "raised"),
    [
        (Order("nope"), SelectionError),
        (Order("ngram", num_speculative_tokens=99), SelectionError),
        (Order("ngram", mode="sometimes"), SelectionError),
        (Order("ngram", policies={"load": {"nope": 1}}), PolicyError),
        (Order("ngram", policies={"nope": {}}), PolicyError),
    ],
)
async def test_an_impossible_switch_is_refused_at_once(
    gateway: Gateway, order: Order, raised: type[Exception]
) -> None:
    with pytest.raises(raised):
        member(gateway).prepare("a", order, LONG_S)
    assert not member(gateway).state().is_switching


@pytest.mark.parametrize("generation", [None, 4])
async def test_a_server_that_has_not_committed_is_released(
    gateway: Gateway, generation: int | None
) -> None:
    member(gateway).prepare("a", NGRAM, LONG_S)
    state = await member(gateway).rollback("a", generation)
    assert state == ReplicaState(generation or 0, SpecMethodBody("draft", 4))
    assert records(gateway) == [("abandoned", None)]


async def test_a_server_that_has_switched_is_switched_back(gateway: Gateway) -> None:
    member(gateway).prepare("a", NGRAM, LONG_S)
    await member(gateway).commit("a", 3)
    state = await member(gateway).rollback("a", 4)
    assert state == ReplicaState(4, SpecMethodBody("draft", 4))
    assert records(gateway) == [("switched", 4), ("switched", 3)]
    assert await member(gateway).rollback("a", 4) == state, "safe to call twice"
    assert len(records(gateway)) == 2


async def test_a_drain_that_waits_is_ended_by_a_roll_back(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    request, done = await begun(gateway)
    member(gateway).prepare("a", Order("ngram", mode="drain", timeout_s=600), LONG_S)
    committing = asyncio.create_task(member(gateway).commit("a", 3))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    state = await member(gateway).rollback("a", 4)
    assert state == ReplicaState(4, SpecMethodBody("draft", 4))
    with pytest.raises(NotPrepared):
        await committing
    assert gateway.runtime.switcher.drain is None
    done()
    assert (await request).status_code == 200


async def test_a_swap_that_has_begun_is_waited_for_and_undone(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    switch = gateway.engine.switch

    async def slow(*args: Any, **kwargs: Any) -> None:
        begun.set()
        await gate.wait()
        await switch(*args, **kwargs)

    monkeypatch.setattr(gateway.engine, "switch", slow)
    member(gateway).prepare("a", NGRAM, LONG_S)
    committing = asyncio.create_task(member(gateway).commit("a", 3))
    await begun.wait()
    undoing = asyncio.create_task(member(gateway).rollback("a", 4))
    await asyncio.sleep(0)
    gate.set()
    assert await undoing == ReplicaState(4, SpecMethodBody("draft", 4))
    with pytest.raises(NotPrepared):
        await committing
    assert [outcome for outcome, _ in records(gateway)] == ["switched", "switched"]


async def test_a_drain_that_times_out_leaves_everything(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    request, done = await begun(gateway)
    before = gateway.runtime.policy_admin.parameters(["load"])
    load = {"load": {"disable_by_batch_size": 3}}
    order = Order("ngram", mode="drain", timeout_s=0.01, policies=load)
    member(gateway).prepare("a", order, LONG_S)
    with pytest.raises(DrainTimeout):
        await member(gateway).commit("a", 3)
    assert member(gateway).state() == ReplicaState(0, SpecMethodBody("draft", 4))
    assert gateway.runtime.policy_admin.parameters(["load"]) == before
    done()
    await request


async def test_policies_change_with_the_method_and_back(gateway: Gateway) -> None:
    admin = gateway.runtime.policy_admin
    before = admin.parameters(["load"])
    order = Order("load", policies={"load": {"disable_by_batch_size": 3}})
    member(gateway).prepare("a", order, LONG_S)
    await member(gateway).commit("a", 1)
    assert admin.parameters(["load"]) != before
    assert member(gateway).state().policies == {"load": {"disable_by_batch_size": 3}}
    await member(gateway).rollback("a", 2)
    assert admin.parameters(["load"]) == before


async def test_an_engine_that_fails_leaves_method_and_policies(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: Any, **kwargs: Any) -> None:
        raise EngineError("no")

    before = gateway.runtime.policy_admin.parameters(["load"])
    member(gateway).prepare(
        "a", Order("load", policies={"load": {"disable_by_batch_size": 3}}), LONG_S
    )
    monkeypatch.setattr(gateway.engine, "switch", fail)
    with pytest.raises(EngineError):
        await member(gateway).commit("a", 1)
    assert active(gateway) == ("draft", 0)
    assert gateway.runtime.policy_admin.parameters(["load"]) == before
    assert member(gateway).state().policies == {}


async def test_a_newer_state_is_adopted_and_an_older_one_is_not(gateway: Gateway) -> None:
    load = {"load": {"disable_by_batch_size": 3}}
    newer = ReplicaState(9, SpecMethodBody("suffix", 6), policies=load)
    assert await member(gateway).adopt(newer)
    assert member(gateway).state() == newer
    assert not await member(gateway).adopt(ReplicaState(9, SpecMethodBody("ngram", 5)))
    assert not await member(gateway).adopt(ReplicaState(8, SpecMethodBody("ngram", 5)))
    assert active(gateway) == ("suffix", 9)
    with pytest.raises(SelectionError):
        await member(gateway).adopt(ReplicaState(10, SpecMethodBody("nope", 5)))
    assert active(gateway) == ("suffix", 9)


async def test_a_server_that_is_reserved_adopts_nothing(gateway: Gateway) -> None:
    member(gateway).prepare("a", NGRAM, LONG_S)
    assert not await member(gateway).adopt(ReplicaState(9, SpecMethodBody("suffix", 6)))
    assert (await member(gateway).commit("a", 9)).active.spec_method == "ngram"
