"""Ray Serve on this machine: switches under load, and what a fleet does when parts of it die.

The replicas have fake engines, whose texts do not depend on the method.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from tests import ray_cluster
from tests.e2e.served import environment
from tests.server.ray_serve.load import Load, texts_of, under_load

ray = pytest.importorskip("ray", reason=ray_cluster.ABSENT)
serve = pytest.importorskip("ray.serve", reason=ray_cluster.ABSENT)

from tests.server.ray_serve.serving import SWITCHES, Fleet, serving, switch_under_load  # noqa: E402

pytestmark = [
    pytest.mark.prove,
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("default"),
]

PROMPTS = tuple(f"def f{number}(x):" for number in range(5))
ARGS = {
    "engine": "fake",
    "engine_args": {"fake_step_ms": 4, "fake_length": 1500, "fake_hang_prompt": "endless"},
    "proposer": [{"name": "ngram"}, {"name": "suffix"}],
    "spec_method": "none",
}
"""A request with the prompt `endless` ends only when its client leaves."""

METHODS = ("ngram", "suffix", "none", "auto")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with serving(ARGS, 4) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def four(fleet: Fleet) -> Fleet:
    """The fleet with four replicas again, also if the test before has ended some."""
    await asyncio.to_thread(fleet.deploy, 4)
    await fleet.until(lambda: fleet.has(4))
    return fleet


@pytest.mark.parametrize("mode", ["immediate", "new_requests", "drain"])
async def test_fifty_switches_under_load(four: Fleet, mode: str) -> None:
    load, generations = await switch_under_load(four, mode, METHODS, PROMPTS)
    assert load.faults == []
    assert load.done >= SWITCHES
    assert generations == list(range(generations[0], generations[0] + SWITCHES))


def _passed(load: Load, before: int) -> Callable[[], Any]:
    async def passed() -> bool:
        return load.done > before

    return passed


async def test_a_replica_without_the_proposer_lags_and_is_named(four: Fleet) -> None:
    generation = await four.switched("none")
    (odd, *_), *_ = await four.each("active")
    await four.each("unload", "suffix", odd)
    answer = await four.switch("suffix")
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert error["code"] == "fleet_incomplete"
    assert f"{odd}: " in error["message"]
    assert await four.states() == {("suffix", generation + 1), ("none", generation)}
    assert await four.switched("ngram") == generation + 2
    await _kill(four, odd)


@pytest.mark.parametrize("method", ["check", "set"])
async def test_a_replica_killed_in_mid_switch(four: Fleet, method: str) -> None:
    """The switch is made without it, and the one that Serve starts in its place has the method."""
    (odd, *_), *_ = await four.each("active")
    await four.each("die_at", method, odd)
    answer = await four.switch("ngram")
    if answer.status_code == 200:
        names = {replica["replica"] for replica in answer.json()["fleet"]["replicas"]}
        assert odd not in names
    else:
        # Serve's proxy had chosen the replica that died for this request.
        assert answer.status_code == 500, answer.text
        await four.until(lambda: four.has(4))
        await four.switched("ngram")
    await four.until(lambda: four.has(4))
    ((name, _),) = await four.states()
    assert name == "ngram"
    assert odd not in {name for name, *_ in await four.each("active")}


async def test_a_replica_that_starts_during_a_switch(four: Fleet) -> None:
    """A drain waits for a request that does not end; meanwhile a fifth replica starts."""
    await four.switched("none")
    body = {"prompt": "endless", "max_tokens": 200, "temperature": 0, "stream": True}
    async with four.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        switching = asyncio.create_task(four.switched("ngram", mode="drain", timeout_s=600))
        await four.until(lambda: _is_switching(four))
        await asyncio.to_thread(four.deploy, 5)
        await four.until(lambda: four.has(5))
        assert not switching.done()
    # The client is gone, so its request ends, and the drain with it.
    generation = await switching
    assert await four.states() == {("ngram", generation)}


async def _is_switching(four: Fleet) -> bool:
    return any(state["fleet"]["switching"] for state in (await _states(four)).values())


async def test_serves_controller_killed(four: Fleet) -> None:
    expected = await texts_of(four.client, PROMPTS)
    controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    async with under_load(four.url, expected) as load:
        ray.kill(controller, no_restart=False)
        generation = await four.switched("suffix")
        states = (await _states(four)).values()
        assert {state["fleet"]["generation"] for state in states} == {generation}
        await four.until(_passed(load, load.done))
    assert load.faults == []
    await four.until(lambda: four.has(4))


async def _states(four: Fleet) -> dict[str, Any]:
    states: dict[str, Any] = (await four.client.get("/v1/fleet")).json()["replicas"]
    return states


async def test_a_killed_replica_is_replaced_by_one_with_the_fleets_method(four: Fleet) -> None:
    generation = await four.switched("suffix")
    (odd, *_), *_ = await four.each("active")
    await _kill(four, odd)
    await four.until(lambda: four.has(4))
    assert await four.states() == {("suffix", generation)}


async def _kill(four: Fleet, name: str) -> None:
    processes = dict(await four.each("process"))
    os.kill(processes[name], signal.SIGKILL)


async def test_user_config_switches_the_replicas_in_place(four: Fleet) -> None:
    before = set(await four.each("process"))
    await four.switched("none")
    config = {"revision": 1, "spec_method": "ngram", "spec_policy": {"auto": {"min_gain": 0.5}}}
    await asyncio.to_thread(four.deploy, 4, user_config=config)
    await four.until(lambda: _all_have(four, "ngram"))
    assert set(await four.each("process")) == before
    # A revision that has been applied is not applied again.
    await four.switched("none")
    same = config | {"spec_method": "suffix"}
    await asyncio.to_thread(four.deploy, 4, user_config=same)
    await asyncio.to_thread(four.deploy, 4, user_config={"revision": 2, "spec_method": "suffix"})
    await four.until(lambda: _all_have(four, "suffix"))
    # One that cannot work changes nothing.
    await asyncio.to_thread(four.deploy, 4, user_config={"revision": 3, "spec_method": "eagle"})
    await four.until(lambda: four.has(4))
    await four.until(lambda: _has_revision(four, 2))
    await four.until(lambda: _are(four, before))
    assert {name for name, _ in await four.states()} == {"suffix"}


async def _are(four: Fleet, processes: set[Any]) -> bool:
    # A call reaches no replica that Serve reconfigures.
    return set(await four.each("process")) == processes


async def _all_have(four: Fleet, method: str) -> bool:
    # Serve does not route to a replica while it reconfigures it.
    return await four.has(4) and {name for name, _ in await four.states()} == {method}


async def _has_revision(four: Fleet, revision: int) -> bool:
    return bool((await four.client.get("/v1/fleet")).json()["desired"]["revision"] == revision)


async def test_no_request_is_lost_when_the_fleet_shrinks_and_grows(four: Fleet) -> None:
    expected = await texts_of(four.client, PROMPTS)
    async with under_load(four.url, expected, clients=8) as load:
        for number in (2, 4):
            await asyncio.to_thread(four.deploy, number)
            await four.until(partial(four.has, number))
            await four.until(_passed(load, load.done + 20))
    assert load.faults == []


async def test_autoscaling_follows_the_requests_and_the_new_ones_have_the_method(
    four: Fleet,
) -> None:
    expected = await texts_of(four.client, PROMPTS)
    times = {"upscale_delay_s": 1, "downscale_delay_s": 1, "look_back_period_s": 2}
    scaling = {"min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 2, **times}
    await asyncio.to_thread(four.deploy, None, autoscaling_config=scaling)
    await four.until(lambda: four.has(1))
    # Serve has ended all replicas before it started this one: their state is lost.
    generation = await four.switched("ngram")
    async with under_load(four.url, expected, clients=12) as load:
        await four.until(lambda: four.has(3))
        assert await four.states() == {("ngram", generation)}
        await four.until(_passed(load, load.done + 20))
    await four.until(lambda: four.has(1))
    assert load.faults == []


async def test_a_client_that_leaves_ends_its_sequence(four: Fleet) -> None:
    body = {"prompt": "endless", "max_tokens": 200, "temperature": 0, "stream": True}
    async with four.client.stream("POST", "/v1/completions", json=body) as answer:
        # The iterator is kept: its end would close the connection.
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        assert sum(await four.each("in_flight")) == 1
    await four.until(lambda: _is_idle(four))


async def _is_idle(four: Fleet) -> bool:
    return sum(await four.each("in_flight")) == 0


async def test_what_would_change_one_replica_is_refused(four: Fleet) -> None:
    for path in ("/v1/load_proposer", "/v1/unload_proposer", "/v1/check_switch"):
        answer = await four.client.post(path, json={"name": "ngram"})
        assert answer.status_code == 409, answer.text
        assert answer.json()["error"]["code"] == "needs_restart"


async def test_the_metrics_are_those_of_all_replicas(four: Fleet) -> None:
    text = (await four.client.get("/metrics")).text
    names = {name for name, *_ in await four.each("active")}
    assert len(names) == 4
    assert all(f'specgate_fleet_generation{{replica="{name}"}}' in text for name in names)


async def test_the_command_switches_the_fleet(four: Fleet) -> None:
    command = [sys.executable, "-m", "server.cli", "switch", "suffix", "--url", four.url]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=ray_cluster.ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "-> suffix" in done.stdout
    assert {name for name, _ in await four.states()} == {"suffix"}
