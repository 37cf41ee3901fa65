"""A commit and a roll back that are cancelled, repeated or called at the same time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from engine_adapter.interface import Engine
from server.control.errors import NotPrepared
from server.control.method_names import MethodRequest
from server.control.records import SpecMethodBody, SwitchResult
from server.fleet.member import Member
from server.fleet.replica import Order, ReplicaState
from tests.server.gateway import Gateway, eventually

LONG_S = 300.0
LOAD = {"load": {"disable_by_batch_size": 3}}
BEFORE = ReplicaState(0, SpecMethodBody("draft", 4))


class Gate:
    """Holds the first call of an engine's method until a test opens it."""

    def __init__(self, engine: Engine, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._opened = asyncio.Event(), asyncio.Event()
        self._call = getattr(engine, method)
        monkeypatch.setattr(engine, method, self._held)

    async def _held(self, *args: Any, **kwargs: Any) -> None:
        self.reached.set()
        await self._opened.wait()
        await self._call(*args, **kwargs)

    def open(self) -> None:
        self._opened.set()

    async def commit(self, gateway: Gateway, **fields: Any) -> asyncio.Task[SwitchResult]:
        """Prepares a switch, and begins its commit, which is held here."""
        member(gateway).prepare("a", Order("ngram", **fields), LONG_S)
        committing = asyncio.create_task(member(gateway).commit("a", 3))
        await self.reached.wait()
        return committing


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
