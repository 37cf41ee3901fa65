"""The limits of each API key, what is counted of them, and the turns of keys."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from server.control.admission.key_limits import TURNS_PER_PASS, KeyLimits, KeyTurns
from server.control.admission.limit_errors import ConcurrencyLimit, RateLimit
from server.telemetry.admission_metrics import AdmissionMetrics
from server.telemetry.metric_maker import MetricMaker


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Harness:
    """Limits, their clock and their metrics."""

    def __init__(self, unfinished: int | None = None, per_minute: int | None = None) -> None:
        self.clock = Clock()
        self._registry = CollectorRegistry()
        metrics = AdmissionMetrics(MetricMaker(self._registry))
        self.request: Any = KeyLimits(unfinished, per_minute, metrics, self.clock).request

    def limited(self, reason: str) -> float | None:
        return self._registry.get_sample_value(
            "specgate_limited_requests_total", {"reason": reason}
        )


def test_a_key_has_so_many_unfinished_requests() -> None:
    harness = Harness(unfinished=2)
    request = harness.request
    with request("a"):
        with request("a"):
            with pytest.raises(ConcurrencyLimit) as caught, request("a"):
                pass
            assert (caught.value.status, caught.value.code) == (429, "concurrency_limit_exceeded")
            with request("b"), request(None):
                pass
        with request("a"):
            pass
    assert harness.limited("concurrency_limit_exceeded") == 1


def test_a_key_sends_so_many_requests_a_minute() -> None:
    harness = Harness(per_minute=3)

    def ask(key: str) -> None:
        with harness.request(key):
            pass

    for _ in range(3):
        ask("a")
    with pytest.raises(RateLimit) as caught:
        ask("a")
    assert caught.value.headers == {"Retry-After": "20"}
    assert caught.value.code == "rate_limit_exceeded"
    ask("b")
    harness.clock.now_s += 19
    with pytest.raises(RateLimit):
        ask("a")
    harness.clock.now_s += 1
    ask("a")
    assert harness.limited("rate_limit_exceeded") == 2
    # A long pause allows as many as a minute does, not more.
    harness.clock.now_s += 3600
    for _ in range(3):
        ask("a")
    with pytest.raises(RateLimit):
        ask("a")


def test_a_refusal_leaves_nothing_behind() -> None:
    harness = Harness(unfinished=1, per_minute=100)
    with harness.request("a"):
        for _ in range(5):
            with pytest.raises(ConcurrencyLimit), harness.request("a"):
                pass
    with harness.request("a"):
        pass
    assert harness.limited("concurrency_limit_exceeded") == 5


def test_without_limits_every_request_is_taken() -> None:
    harness = Harness()
    for _ in range(1000):
        with harness.request("a"), harness.request("a"):
            pass
    for reason in ("concurrency_limit_exceeded", "rate_limit_exceeded"):
        assert harness.limited(reason) == 0


# -- turns -----------------------------------------------------------------------------------


async def test_a_key_with_many_requests_does_not_hold_up_another() -> None:
    turns, begun = KeyTurns(), list[str]()

    async def come(name: str) -> None:
        await turns.turn(name.partition(" ")[0])
        begun.append(name)

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(come(f"alice {number}"))
        group.create_task(come("bob"))
    assert begun.index("bob") <= TURNS_PER_PASS
    begun.remove("bob")
    assert begun == [f"alice {number}" for number in range(100)]


async def test_each_pass_begins_as_many_requests_of_a_key_as_it_has_turns() -> None:
    turns, begun = KeyTurns(), list[int]()

    async def come(number: int) -> None:
        await turns.turn("alice")
        begun.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(5 * TURNS_PER_PASS)]
    counts = []
    while len(begun) < len(tasks):
        before = len(begun)
        await asyncio.sleep(0)
        counts.append(len(begun) - before)
    assert max(counts) == TURNS_PER_PASS
    assert len(counts) <= 2 * 5


async def test_a_client_that_leaves_does_not_keep_the_turn() -> None:
    turns = KeyTurns()
    tasks = [asyncio.create_task(turns.turn("alice")) for _ in range(5 * TURNS_PER_PASS)]
    await asyncio.sleep(0)
    for task in tasks[:-1]:
        task.cancel()
    await asyncio.wait_for(tasks[-1], 60)
    await asyncio.wait_for(turns.turn("alice"), 60)
