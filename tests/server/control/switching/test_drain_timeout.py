"""What a drain does with the requests that outlive it."""

import asyncio
import itertools
import json
import time
from typing import Any

import httpx
import pytest

from tests.server.conftest import StartGateway
from tests.server.control.switching.test_drain import (
    ENDLESS,
    SHORT,
    Running,
    drain,
    statistics,
    switch,
)
from tests.server.gateway import Exchange, Gateway, events, eventually

LIMIT_S = 0.2


@pytest.mark.parametrize("timeout_s", [0, -1, 3600.1, 1e300, "1e400", None, "nan"])
async def test_the_limit_is_bounded(gateway: Gateway, timeout_s: Any) -> None:
    response = await switch(gateway, "ngram", timeout_s=timeout_s)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "timeout_s")


async def test_the_largest_limit_and_every_end_are_accepted(gateway: Gateway) -> None:
    for end in ("fail", "move", "abort"):
        response = await switch(gateway, "ngram", timeout_s=3600, on_timeout=end)
        assert (response.status_code, response.json()["aborted"]) == (200, 0)
    response = await switch(gateway, "ngram", on_timeout="kill")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "on_timeout")


async def test_requests_that_outlive_a_drain_can_move(start: StartGateway) -> None:
    async with drain(start, timeout_s=1.5, on_timeout="move") as running:
        gateway = running.gateway
        pinned = gateway.exchange("/v1/completions", {**ENDLESS, "speculative_model": "draft"})
        held = await running.hold(2)
        shown = (await gateway.client.get("/v1/spec_method")).json()["drain"]
        assert shown["on_timeout"] == "move"
        response = await running.drain
        assert (response.status_code, response.json()["in_flight"]) == (200, 1)
        assert response.json()["aborted"] == 0
        await asyncio.gather(*running.tasks)
        assert all('"proposer":"ngram"' in exchange.text for exchange in held)
        assert gateway.runtime.switcher.in_flight.by_proposer == {"ngram": 1}
        assert not pinned.sent


async def test_a_pinned_request_does_not_move(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 2, "fake_acceptance": 0})
    body = {"max_tokens": 400, "ignore_eos": True, "speculative_model": "suffix"}
    ahead = asyncio.create_task(gateway.complete("a", **body))
    await eventually(lambda: gateway.engine.num_running == 1, 20)
    response = await switch(gateway, "ngram", timeout_s=0.05, on_timeout="move")
    assert (response.status_code, response.json()["in_flight"]) == (200, 1)
    assert set(statistics((await ahead).json())["by_proposer"]) == {"suffix"}


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_that_outlive_a_drain_can_be_aborted(
    start: StartGateway, stream: bool
) -> None:
    gateway = await start(engine_args={"fake_step_ms": 2, "fake_acceptance": 0})
    ahead = [gateway.exchange("/v1/completions", {**ENDLESS, "stream": stream}) for _ in range(3)]
    tasks = [exchange.begin() for exchange in ahead]
    await eventually(lambda: gateway.engine.num_running == 3, 20)
    response = await switch(gateway, "ngram", timeout_s=LIMIT_S, on_timeout="abort")
    assert (response.status_code, response.json()["in_flight"]) == (200, 0)
    assert response.json()["aborted"] == 3
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    for exchange in ahead:
        assert exchange.status == (200 if stream else 503)
        error = last_error(exchange) if stream else json.loads(exchange.text)["error"]
        assert error["code"] == "drain_aborted"
        assert '"finish_reason":"' not in exchange.text
    if not stream:
        headers = dict(ahead[0].sent[0]["headers"])
        assert headers[b"retry-after"] == b"1"
    assert gateway.engine.num_running == 0
    record = gateway.state.audit.switches[0]
    assert (record.outcome, record.aborted, record.in_flight) == ("switched", 3, 0)
    assert statistics((await gateway.complete(**SHORT)).json())["proposer"] == "ngram"


def last_error(exchange: Exchange) -> dict[str, Any]:
    """The error with which a stream ends."""
    *_, last, done = [part for part in exchange.text.split("\n\n") if part]
    assert done == "data: [DONE]"
    error: dict[str, Any] = json.loads(last.removeprefix("data: "))["error"]
    return error


class Unread(Exchange):
    """A client that reads nothing: a send waits until it leaves."""

    async def _send(self, message: Any) -> None:
        await super()._send(message)
        if message["type"] == "http.response.body":
            await self.gone.wait()


async def test_a_request_that_does_not_even_end_when_it_is_aborted(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.control.switching.switcher.ABORT_S", 1.0)
    async with drain(start, timeout_s=LIMIT_S, on_timeout="abort") as running:
        with running.gateway.runtime.switcher.in_flight.track("draft"):
            # Its task is this one, which is not cancelled.
            for entry in running.gateway.runtime.switcher.in_flight._entries:
                if entry.task is asyncio.current_task():
                    entry.task = None
            response = await asyncio.wait_for(running.drain, 60)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (504, "drain_timeout")
        assert error["message"] == (
            f"1 admitted request did not end within {LIMIT_S:g} s, nor after the drain had "
            "aborted 2 requests; the method was not changed."
        )
        assert running.gateway.runtime.switcher.active.name == "draft"


@pytest.mark.parametrize("max_tokens", [2000, 20])
async def test_an_unread_stream_does_not_stop_a_drain(start: StartGateway, max_tokens: int) -> None:
    gateway = await start(engine_args={"fake_step_ms": 1, "fake_acceptance": 0})
    body = json.dumps({**ENDLESS, "max_tokens": max_tokens, "stream": True, "n": 2}).encode()
    unread = Unread(gateway.app, "/v1/completions", body)
    task = unread.begin()
    await eventually(lambda: len(unread.sent) > 1)
    refused = await switch(gateway, "ngram", timeout_s=LIMIT_S)
    assert (refused.status_code, refused.json()["error"]["code"]) == (504, "drain_timeout")
    response = await switch(gateway, "ngram", timeout_s=LIMIT_S, on_timeout="abort")
    assert (response.status_code, response.json()["aborted"]) == (200, 1)
    assert gateway.engine.num_running == 0
    assert len(gateway.runtime.switcher.in_flight) == 0
    unread.leave()
    await asyncio.wait_for(task, 60)


async def test_the_caller_can_still_leave_and_the_server_still_stop(start: StartGateway) -> None:
    async with drain(start, timeout_s=60, on_timeout="abort") as running:
        running.gateway.runtime.switcher.stop()
        assert (await running.drain).json()["error"]["code"] == "stopping"
        assert running.gateway.engine.num_running == 1


@pytest.mark.parametrize("end", ["move", "abort"])
async def test_drains_succeed_under_steady_load(start: StartGateway, end: str) -> None:
    """Every stream lasts longer than a drain waits."""
    gateway = await start(engine_args={"fake_step_ms": 2, "fake_acceptance": 0})
    stopping = asyncio.Event()
    whole: list[int] = []
    aborted: list[int] = []

    async def client(number: int) -> None:
        while not stopping.is_set():
            stream = bool(number % 2)
            response = await gateway.complete(
                f"x = {number}", max_tokens=600, ignore_eos=True, stream=stream
            )
            if response.status_code == 503:
                assert response.json()["error"]["code"] == "drain_aborted"
                aborted.append(number)
                continue
            assert response.status_code == 200
            last = events(response)[-1] if stream else response.json()
            if "error" in last:
                assert last["error"]["code"] == "drain_aborted"
                aborted.append(number)
            else:
                assert last["choices"][0]["finish_reason"] == "length"
                whole.append(number)

    clients = [asyncio.create_task(client(number)) for number in range(8)]
    await eventually(lambda: gateway.engine.num_running == 8, 20)
    gone, outcomes = 0, []
    for method in ("ngram", "suffix", "none", "draft", "ngram"):
        response = await switch(gateway, method, timeout_s=0.02, on_timeout=end)
        assert response.status_code == 200, response.text
        outcomes.append(response.json()["in_flight"])
        gone += response.json()["aborted"]
        await eventually(lambda: gateway.engine.num_running == 8, 20)
    refused = await switch(gateway, "none", timeout_s=0.02)
    assert refused.json()["error"]["code"] == "drain_timeout"
    stopping.set()
    await asyncio.gather(*clients)
    assert len(whole) >= 8
    assert (len(aborted), sum(outcomes)) == ((gone, 0) if end == "abort" else (0, sum(outcomes)))
    assert (sum(outcomes) if end == "move" else gone) > 8


async def test_clocks_that_jump_change_no_duration(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(engine_args={"fake_step_ms": 2, "fake_acceptance": 0})
    jumps = itertools.cycle([1e11, 0.0, 2e9])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    ahead = gateway.exchange("/v1/completions", {**ENDLESS, "stream": True})
    task = ahead.begin()
    await eventually(lambda: gateway.engine.num_running == 1, 20)
    begun = time.monotonic()
    response: httpx.Response = await switch(gateway, "ngram", timeout_s=0.3, on_timeout="move")
    assert response.status_code == 200
    waited_ms = response.json()["waited_ms"]
    assert 300 <= waited_ms <= (time.monotonic() - begun) * 1e3
    labels = {"mode": "drain"}
    seconds = gateway.sample("specgate_spec_method_switch_seconds_sum", **labels)
    assert seconds is not None
    assert 0.3 <= seconds < 60
    assert gateway.engine.num_running == 1, "the stream continues"
    ahead.leave()
    await task


async def test_a_switch_that_the_engine_refuses_leaves_the_old_method(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_fail_switch": "no room"})
    for mode in ("immediate", "new_requests", "drain"):
        response = await switch(gateway, "ngram", mode=mode)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
        assert gateway.state.audit.switches[0].error == "no room"
    assert gateway.runtime.switcher.active.name == "draft"
    assert not gateway.runtime.switcher.busy
    assert Running(gateway).held == 0
