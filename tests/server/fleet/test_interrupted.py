"""A commit and a roll back that are cancelled, repeated or called at the same time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from server.control.errors import NotPrepared
from server.control.method_names import MethodRequest
from server.control.records import SpecMethodBody
from server.fleet.member import Member
from server.fleet.replica import Order, ReplicaState
from tests.server.conftest import StartGateway
from tests.server.fleet.gate import Gate
from tests.server.fleet.in_flight import begun
from tests.server.gateway import Gateway, eventually

LONG_S = 300.0
LOAD = {"load": {"disable_by_batch_size": 3}}
BEFORE = ReplicaState(0, SpecMethodBody("draft", 4))


def member(gateway: Gateway) -> Member:
    return gateway.runtime.fleet


def load_policy(gateway: Gateway) -> Any:
    return gateway.runtime.policy_admin.parameters(["load"])


async def turns() -> None:
    """Lets every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def begin(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Begins a call; returns when it waits."""
    task = asyncio.create_task(call)
    await turns()
    return task


async def leave(call: asyncio.Task[Any]) -> None:
    """The caller of a call leaves."""
    call.cancel()
    await turns()


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_commit_that_is_cancelled_during_its_policy_change_leaves_the_policies(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, cancels: int
) -> None:
    before = load_policy(gateway)
    gate = Gate(gateway.engine, "set_policy", monkeypatch)
    committing = await gate.commit(gateway, policies=LOAD)
    for _ in range(cancels):
        await leave(committing)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await committing
    await eventually(lambda: not gateway.runtime.switcher.busy)
    assert load_policy(gateway) == before
    assert await member(gateway).rollback("a", 4) == ReplicaState(4, BEFORE.active)
    assert load_policy(gateway) == before


async def test_a_roll_back_during_a_policy_change_restores_the_policies(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_policy(gateway)
    gate = Gate(gateway.engine, "set_policy", monkeypatch)
    committing = await gate.commit(gateway, policies=LOAD)
    undoing = await begin(member(gateway).rollback("a", 4))
    gate.open()
    assert await undoing == ReplicaState(4, BEFORE.active)
    assert load_policy(gateway) == before
    with pytest.raises(NotPrepared):
        await committing
    assert not gateway.runtime.switcher.busy


async def test_a_commit_that_is_cancelled_twice_during_its_swap_is_undone_with_its_policies(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_policy(gateway)
    gate = Gate(gateway.engine, "switch", monkeypatch)
    committing = await gate.commit(gateway, policies=LOAD)
    await leave(committing)
    undoing = await begin(member(gateway).rollback("a", 4))
    gate.open()
    state = await undoing
    assert (state.active, state.fleet_generation) == (BEFORE.active, 4)
    assert load_policy(gateway) == before
    with pytest.raises(asyncio.CancelledError):
        await committing


async def test_a_repeated_commit_gets_the_answer_although_the_first_caller_leaves(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(gateway.engine, "set_policy", monkeypatch)
    first = await gate.commit(gateway, policies=LOAD)
    again = await begin(member(gateway).commit("a", 3))
    await leave(first)
    gate.open()
    assert (await again).active.spec_method == "ngram"
    assert member(gateway).state().fleet_generation == 3


async def test_a_commit_that_comes_again_when_the_swap_has_begun_gets_the_answer(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(gateway.engine, "switch", monkeypatch)
    first = await gate.commit(gateway)
    await leave(first)
    again = await begin(member(gateway).commit("a", 3))
    gate.open()
    assert (await again).active.spec_method == "ngram"


async def test_a_commit_that_comes_again_after_it_was_abandoned_is_refused(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(gateway.engine, "set_policy", monkeypatch)
    first = await gate.commit(gateway, policies=LOAD)
    await leave(first)
    again = await begin(member(gateway).commit("a", 3))
    gate.open()
    with pytest.raises(NotPrepared):
        await again
    assert member(gateway).state() == BEFORE


async def test_two_roll_backs_at_a_time_get_the_same_answer(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    member(gateway).prepare("a", Order("ngram"), LONG_S)
    await member(gateway).commit("a", 3)
    gate = Gate(gateway.engine, "switch", monkeypatch)
    first = asyncio.create_task(member(gateway).rollback("a", 4))
    await gate.reached.wait()
    second = await begin(member(gateway).rollback("a", 4))
    first.cancel()
    gate.open()
    assert await second == ReplicaState(4, BEFORE.active)
    assert len(gateway.runtime.audit.switches) == 2


async def test_a_roll_back_at_the_same_time_as_the_commit_leaves_the_server_free(
    gateway: Gateway,
) -> None:
    member(gateway).prepare("a", Order("ngram", policies=LOAD), LONG_S)
    before = load_policy(gateway)
    committing = asyncio.create_task(member(gateway).commit("a", 3))
    state = await member(gateway).rollback("a", 4)
    with pytest.raises(NotPrepared):
        await committing
    assert state.active == BEFORE.active
    assert load_policy(gateway) == before
    assert not gateway.runtime.switcher.busy


async def test_a_roll_back_with_an_old_number_does_not_lower_the_servers(
    gateway: Gateway,
) -> None:
    member(gateway).prepare("a", Order("ngram"), LONG_S)
    await member(gateway).commit("a", 7)
    assert (await member(gateway).rollback("a", 2)).fleet_generation == 8
    member(gateway).prepare("b", Order("ngram"), LONG_S)
    assert (await member(gateway).rollback("b", 3)).fleet_generation == 8


async def test_a_roll_back_leaves_a_later_switch_of_this_server_alone(gateway: Gateway) -> None:
    before = load_policy(gateway)
    member(gateway).prepare("a", Order("ngram", policies=LOAD), LONG_S)
    await member(gateway).commit("a", 3)
    await gateway.runtime.switcher.switch(MethodRequest("suffix", None, True))
    state = await member(gateway).rollback("a", 4)
    assert (state.active.spec_method, state.fleet_generation) == ("suffix", 4)
    assert load_policy(gateway) == before


OWN = {"load": {"disable_by_batch_size": 12}}
"""What an operator gives one server."""


async def test_a_roll_back_leaves_policies_alone_that_this_server_got_after_the_commit(
    gateway: Gateway,
) -> None:
    admin = gateway.runtime.policy_admin
    goodput = admin.parameters(["goodput"])
    order = Order("ngram", policies={**LOAD, "goodput": {"min_gain": 0.5}})
    member(gateway).prepare("a", order, LONG_S)
    await member(gateway).commit("a", 3)
    await admin.change(OWN, None)
    own = load_policy(gateway)
    state = await member(gateway).rollback("a", 4)
    assert (state.active, state.kept_policies) == (BEFORE.active, ("load",))
    assert load_policy(gateway) == own
    assert admin.parameters(["goodput"]) == goodput
    assert (await member(gateway).rollback("a", 4)).kept_policies == ("load",), (
        "its answer was lost"
    )


async def test_a_drain_that_is_ended_leaves_policies_alone_that_this_server_got_meanwhile(
    start: StartGateway,
) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5})
    request, done = await begun(gateway)
    order = Order("ngram", mode="drain", timeout_s=600, policies=LOAD)
    member(gateway).prepare("a", order, LONG_S)
    committing = asyncio.create_task(member(gateway).commit("a", 3))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    await gateway.runtime.policy_admin.change(OWN, None)
    own = load_policy(gateway)
    state = await member(gateway).rollback("a", 4)
    assert (state.active, state.kept_policies) == (BEFORE.active, ("load",))
    assert load_policy(gateway) == own
    with pytest.raises(NotPrepared):
        await committing
    done()
    assert (await request).status_code == 200


async def test_a_roll_back_restores_the_policies_of_the_commit_not_of_the_reservation(
    gateway: Gateway,
) -> None:
    member(gateway).prepare("a", Order("ngram", policies=LOAD), LONG_S)
    await gateway.runtime.policy_admin.change(OWN, None)
    own = load_policy(gateway)
    await member(gateway).commit("a", 3)
    state = await member(gateway).rollback("a", 4)
    assert state == ReplicaState(4, BEFORE.active, policies=own)
    assert load_policy(gateway) == own


async def test_the_end_of_a_coordinator_ends_what_it_has_not_finished(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await member(gateway).end_switch()
    member(gateway).prepare("a", Order("ngram"), LONG_S)
    await member(gateway).end_switch()
    assert member(gateway).state() == BEFORE
    member(gateway).prepare("b", Order("ngram"), LONG_S)
    await member(gateway).commit("b", 3)
    await member(gateway).end_switch()
    assert member(gateway).state() == ReplicaState(3, SpecMethodBody("ngram", 5))
    gate = Gate(gateway.engine, "switch", monkeypatch)
    undoing = asyncio.create_task(member(gateway).rollback("b", 4))
    await gate.reached.wait()
    undoing.cancel()
    ending = asyncio.create_task(member(gateway).end_switch())
    await turns()
    assert not ending.done(), "the roll back still runs"
    gate.open()
    await ending
    assert member(gateway).state() == ReplicaState(4, BEFORE.active)
