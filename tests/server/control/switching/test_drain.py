"""A drain over HTTP: new requests are held, admitted ones finish, held ones continue in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Exchange, Gateway, build, events, eventually

ENDLESS: dict[str, Any] = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True}
SHORT: dict[str, Any] = {"prompt": "b", "max_tokens": 2}


async def switch(gateway: Gateway, name: str | None, **body: Any) -> httpx.Response:
    fields = {"speculative_model": name, "mode": "drain", **body}
    return await gateway.post("/v1/switch_spec_method", fields)


class Running:
    """A drain to `ngram` that waits for one endless request."""

    def __init__(self, gateway: Gateway, **body: Any) -> None:
        self.gateway = gateway
        self.ahead = gateway.exchange("/v1/completions", ENDLESS)
        self._body = body

    async def begin(self) -> "asyncio.Task[httpx.Response]":
        self._task = self.ahead.begin()
        await eventually(lambda: self.gateway.engine.num_running == 1, 20)
        self.drain = asyncio.create_task(switch(self.gateway, "ngram", **self._body))
        await eventually(lambda: self.gateway.runtime.switcher.drain is not None)
        return self.drain

    async def end(self) -> httpx.Response:
        """Disconnects the endless request that the drain waits for."""
        self.ahead.leave()
        await self._task
        return await asyncio.wait_for(self.drain, 60)

    async def hold(self, count: int, body: dict[str, Any] = SHORT, **more: Any) -> list[Exchange]:
        """Sends `count` more requests and waits until they are held."""
        before = self.held
        exchanges = [
            self.gateway.exchange("/v1/completions", {**body, **more}) for _ in range(count)
        ]
        self.tasks = [exchange.begin() for exchange in exchanges]
        await eventually(lambda: self.held == before + count)
        return exchanges

    @property
    def held(self) -> int:
        return self.gateway.runtime.admission.slots.num_queued


@asynccontextmanager
async def drain(start: StartGateway, **body: Any) -> AsyncIterator[Running]:
    running = Running(await start(engine_args={"fake_step_ms": 2, "fake_acceptance": 0}), **body)
    await running.begin()
    yield running
    running.ahead.leave()


async def test_an_idle_server_drains_at_once(gateway: Gateway) -> None:
    response = await switch(gateway, "ngram", num_speculative_tokens=3)
    body = response.json()
    assert body.pop("waited_ms") < 1000
    assert body == {
        "previous": {"spec_method": "draft", "num_speculative_tokens": 4},
        "active": {"spec_method": "ngram", "num_speculative_tokens": 3},
        "mode": "drain",
        "generation": 1,
        "fleet_generation": 0,
        "in_flight": 0,
        "aborted": 0,
    }
    assert gateway.runtime.admission.slots.is_open


async def test_admitted_requests_keep_their_method_and_held_ones_get_the_new(
    start: StartGateway,
) -> None:
    gateway = await start(engine_args={"fake_step_ms": 2, "fake_acceptance": 0})
    ahead = asyncio.create_task(gateway.complete("a", max_tokens=100, ignore_eos=True))
    await eventually(lambda: gateway.engine.num_running == 1, 20)
    draining = asyncio.create_task(switch(gateway, "ngram"))
    await eventually(lambda: not gateway.runtime.admission.slots.is_open)
    held = [
        asyncio.create_task(gateway.complete("b", max_tokens=40, **fields))
        for fields in ({}, {"speculative_model": "suffix"}, {"num_speculative_tokens": 1})
    ]
    first, switched = await ahead, (await draining).json()
    assert (switched["in_flight"], switched["generation"]) == (0, 1)
    assert switched["waited_ms"] > 20
    assert set(statistics(first.json())["by_proposer"]) == {"draft"}
    assert first.json()["usage"]["completion_tokens"] == 100
    answers = [statistics((await task).json()) for task in held]
    assert [a["proposer"] for a in answers] == ["ngram", "suffix", "ngram"]
    assert [a["num_spec_tokens"] for a in answers] == [5, 8, 1]
    for answer in answers:
        assert set(answer["by_proposer"]) == {answer["proposer"]}


async def test_held_requests_are_not_in_the_engine_and_are_shown(start: StartGateway) -> None:
    async with drain(start, timeout_s=9) as running:
        await running.hold(2)
        await running.hold(1, prompt=["b", "c"], n=2, stream=True)
        shown = (await running.gateway.client.get("/v1/spec_method")).json()
        assert shown["drain"].pop("waited_ms") > 0
        assert shown["drain"] == {
            "to": {"spec_method": "ngram", "num_speculative_tokens": 5},
            "held": 3,
            "timeout_s": 9.0,
            "on_timeout": "fail",
        }
        assert (shown["spec_method"], shown["in_flight"]) == ("draft", {"draft": 1})
        engine = running.gateway.engine
        assert (engine.num_running, engine.num_waiting) == (1, 0)
        await running.end()
        assert (await running.gateway.client.get("/v1/spec_method")).json()["drain"] is None


async def test_a_request_with_several_choices_counts_as_one_in_flight(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 2, "fake_acceptance": 0})
    ahead = asyncio.create_task(gateway.complete(["a", "b"], n=2, max_tokens=60, ignore_eos=True))
    await eventually(lambda: gateway.engine.num_running == 4)
    assert len(gateway.runtime.switcher.in_flight) == 1
    assert (await switch(gateway, "ngram")).status_code == 200
    assert set(statistics((await ahead).json())["by_proposer"]) == {"draft"}


@pytest.mark.parametrize("stream", [True, False])
async def test_held_requests_continue_and_finish_in_order(
    start: StartGateway, stream: bool
) -> None:
    gateway = await start(max_num_seqs=1, engine_args={"fake_step_ms": 1})
    running = Running(gateway)
    await running.begin()
    finished: list[int] = []

    async def ask(number: int) -> None:
        # Every second request has two choices, which start a little later.
        response = await gateway.complete(
            f"x = {number}", max_tokens=3, n=1 + number % 2, stream=stream and number % 3 == 0
        )
        assert response.status_code == 200
        finished.append(number)

    tasks = []
    for number in range(8):
        tasks.append(asyncio.create_task(ask(number)))
        await eventually(lambda: running.held == len(tasks))
    await running.end()
    await asyncio.gather(*tasks)
    assert finished == list(range(8))


async def test_a_drain_that_times_out_changes_nothing(start: StartGateway) -> None:
    async with drain(start, timeout_s=1) as running:
        held = await running.hold(3)
        response = await running.drain
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (504, "drain_timeout")
        assert "1 admitted request did not end within 1 s" in error["message"]
        await asyncio.gather(*running.tasks)
        assert [exchange.status for exchange in held] == [200] * 3
        assert all('"proposer":"draft"' in exchange.text for exchange in held)
        switcher, gateway = running.gateway.runtime.switcher, running.gateway
        assert (switcher.active.name, switcher.active.epoch) == ("draft", 0)
        assert gateway.runtime.admission.slots.is_open
        assert gateway.engine.num_running == 1
        labels = {"mode": "drain", "outcome": "timed_out"}
        assert gateway.sample("specgate_spec_method_switches_total", **labels) == 1
        assert (await switch(gateway, "none", mode="immediate")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_held_request_ends_when_its_client_disconnects(
    start: StartGateway, stream: bool
) -> None:
    async with drain(start) as running:
        exchanges = await running.hold(3, stream=stream)
        exchanges[1].leave()
        await asyncio.wait_for(running.tasks[1], 60)
        assert running.held == 2
        # 499: the client has disconnected before anything was sent.
        assert exchanges[1].status == 499
        await running.end()
        await asyncio.gather(*running.tasks)
        assert [exchange.status for exchange in exchanges] == [200, 499, 200]
        requests = running.gateway.sample(
            "specgate_requests_total", proposer="ngram", selected_by="active"
        )
        assert requests == 2


async def test_an_invalid_request_is_refused_during_a_drain(start: StartGateway) -> None:
    async with drain(start) as running:
        for fields in ({"speculative_model": "nope"}, {"max_tokens": 0}):
            response = await asyncio.wait_for(running.gateway.complete("a", **fields), 60)
            assert response.status_code == 400
        assert running.held == 0


@pytest.mark.parametrize("mode", ["immediate", "new_requests", "drain"])
async def test_a_second_switch_is_refused_during_a_drain(start: StartGateway, mode: str) -> None:
    async with drain(start) as running:
        response = await switch(running.gateway, "suffix", mode=mode)
        assert (response.status_code, response.json()["error"]["code"]) == (
            409,
            "switch_in_progress",
        )
        assert (await running.end()).json()["active"]["spec_method"] == "ngram"


async def test_a_drain_is_abandoned_when_its_caller_disconnects(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 2, "fake_acceptance": 0})
    ahead = gateway.exchange("/v1/completions", ENDLESS)
    first = ahead.begin()
    await eventually(lambda: gateway.engine.num_running == 1, 20)
    caller = gateway.exchange("/v1/switch_spec_method", {"proposer": "ngram", "mode": "drain"})
    calling = caller.begin()
    await eventually(lambda: not gateway.runtime.admission.slots.is_open)
    held = asyncio.create_task(gateway.complete("b", max_tokens=2))
    await eventually(lambda: gateway.runtime.admission.slots.num_queued == 1)
    caller.leave()
    await asyncio.wait_for(calling, 60)
    assert statistics((await asyncio.wait_for(held, 60)).json())["proposer"] == "draft"
    assert gateway.runtime.switcher.active.epoch == 0
    assert gateway.state.audit.switches[0].outcome == "abandoned"
    ahead.leave()
    await first


async def test_a_failed_swap_keeps_the_method_and_releases_held_requests(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drain(start) as running:

        async def broken(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("no")

        monkeypatch.setattr(running.gateway.engine, "switch", broken)
        held = await running.hold(2)
        assert (await running.end()).status_code == 500
        await asyncio.gather(*running.tasks)
        assert all('"proposer":"draft"' in exchange.text for exchange in held)
        assert running.gateway.runtime.switcher.active.name == "draft"
        assert running.gateway.state.audit.switches[0].outcome == "failed"


async def test_an_engine_death_releases_held_requests(start: StartGateway) -> None:
    async with drain(start) as running:
        held = await running.hold(2)
        running.gateway.engine.die()
        assert (await asyncio.wait_for(running.drain, 60)).status_code == 503
        await asyncio.wait_for(asyncio.gather(*running.tasks), 60)
        assert [exchange.status for exchange in held] == [503, 503]


async def test_a_stop_ends_the_drain_and_held_requests_with_503() -> None:
    app, engine, registry = build(engine_args={"fake_step_ms": 2, "fake_acceptance": 0})
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        gateway: Any = Gateway(app, engine, registry, client)  # type: ignore[arg-type]
        running = Running(gateway)
        async with app.router.lifespan_context(app):
            await gateway.state.start_ended.wait()
            await running.begin()
            (held,) = await running.hold(1)
        response = await asyncio.wait_for(running.drain, 60)
        await asyncio.wait_for(running.tasks[0], 60)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "stopping")
        # It has no engine any more: a real server ends it before, with `stopping`.
        assert (held.status, '"engine_dead"' in held.text) == (503, True)


async def test_a_stop_serves_held_requests_that_finish_in_time(start: StartGateway) -> None:
    async with drain(start) as running:
        (held,) = await running.hold(1)
        running.gateway.runtime.switcher.stop()
        assert (await running.drain).status_code == 503
        await running.tasks[0]
        assert held.status == 200
        # A new drain does not start while the server stops.
        assert (await switch(running.gateway, "ngram")).status_code == 503


async def test_twenty_drains_under_sixteen_streams_lose_no_request(
    start: StartGateway,
) -> None:
    gateway = await start(max_num_seqs=12, engine_args={"fake_step_ms": 1})
    names = ("ngram", "none", "suffix", "draft-small", "draft")
    stopping = asyncio.Event()
    answers: list[tuple[dict[str, Any], str]] = []

    async def stream(number: int) -> None:
        turn = 0
        while not stopping.is_set():
            turn += 1
            response = await gateway.complete(
                f"x = {number}", temperature=0, max_tokens=24, ignore_eos=True, stream=True
            )
            last = events(response)[-1]
            assert last["choices"][0]["finish_reason"] == "length"
            answers.append((statistics(last), response.headers["x-specgate-spec-method"]))

    streams = [asyncio.create_task(stream(number)) for number in range(16)]
    for i in range(20):
        drained = len(answers)
        response = await switch(gateway, names[i % 5])
        assert (response.status_code, response.json()["in_flight"]) == (200, 0)

        def of_the_new(name: str = names[i % 5], since: int = drained) -> int:
            return sum(found == name for _, found in answers[since:])

        await eventually(lambda count=of_the_new: count() >= 6)  # type: ignore[misc]
    stopping.set()
    await asyncio.gather(*streams)
    assert len(answers) > 100
    assert {name for _, name in answers} == set(names)
    for figures, name in answers:
        assert figures["proposer"] == name
        assert set(figures["by_proposer"]) == {name} - {"none"}
    assert len(gateway.runtime.switcher.in_flight) == 0
    asked = sum(
        gateway.sample("specgate_requests_total", proposer=n, selected_by="active") or 0
        for n in names
    )
    assert asked == len(answers)


def statistics(body: dict[str, Any]) -> dict[str, Any]:
    """The statistics of a response or of a stream's last chunk."""
    figures: dict[str, Any] = body["metrics"]["speculative_decoding"]
    return figures
