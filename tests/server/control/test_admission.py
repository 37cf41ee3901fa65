"""The limits of the queue, and what is counted of them."""

from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from server.control.admission import Admission
from server.control.slots import Demand, SlotLimits
from server.limit_errors import QueueFull
from server.settings.limit_settings import LimitSettings
from server.telemetry.admission_metrics import AdmissionMetrics
from server.telemetry.metric_maker import MetricMaker


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Harness:
    """An admission with one slot, its clock and its metrics."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.registry = CollectorRegistry()
        fields = {"max_queued_requests": 2, "max_queued_prompt_tokens": 100, **limits}
        self.admission = Admission(
            SlotLimits(1, 1, 512),
            LimitSettings(**fields),
            AdmissionMetrics(MetricMaker(self.registry)),
            self.clock,
        )

    def limited(self, reason: str) -> float | None:
        return self.value("specgate_limited_requests_total", reason=reason)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def demand(tokens: int = 10, key: str | None = None) -> Demand:
    return Demand(key, 1, [tokens], tokens)


async def test_a_full_queue_is_refused_and_counted() -> None:
    harness = Harness()
    admission = harness.admission
    with ExitStack() as stack:
        places = [stack.enter_context(admission.place(demand())) for _ in range(4)]
        assert places[0].start_now()
        for place in places[1:3]:
            admission.check_queue(place.demand)
            admission.slots.wait(place)
        with pytest.raises(QueueFull) as caught:
            admission.check_queue(places[3].demand)
        assert (caught.value.status, caught.value.code) == (429, "server_overloaded")
        # Nothing has left the queue yet, so its drain is not known.
        assert caught.value.headers == {"Retry-After": "5"}
        assert harness.limited("server_overloaded") == 1
        assert harness.value("specgate_queued_requests") == 2
        assert harness.value("specgate_queued_prompt_tokens") == 20
        assert harness.value("specgate_slots_in_use") == harness.value("specgate_slots") == 1
    assert harness.value("specgate_queued_requests") == 0
    assert harness.value("specgate_slots_in_use") == 0


async def test_a_queue_is_full_of_prompt_tokens_but_an_empty_one_takes_any_prompt() -> None:
    harness = Harness()
    admission = harness.admission
    with ExitStack() as stack:
        first, long, second = (
            stack.enter_context(admission.place(demand(tokens))) for tokens in (1, 500, 1)
        )
        assert first.start_now()
        admission.check_queue(long.demand)
        admission.slots.wait(long)
        with pytest.raises(QueueFull):
            admission.check_queue(second.demand)


async def test_retry_after_is_the_time_in_which_the_queue_empties() -> None:
    harness = Harness(max_queued_requests=10)
    admission = harness.admission
    with ExitStack() as stack:
        places = [stack.enter_context(admission.place(demand())) for _ in range(11)]
        assert places[0].start_now()
        for place in places[1:]:
            admission.slots.wait(place)
        for place in places[:5]:
            harness.clock.now_s += 2
            place.leave()
        # Five left in ten seconds; five more wait.
        assert admission.slots.num_queued == 5
        assert admission.retry_after_s == pytest.approx(10)
        harness.clock.now_s += 10
        # A queue that stands still empties later and later.
        assert admission.retry_after_s == pytest.approx(20, rel=0.05)


async def test_retry_after_does_not_count_the_time_without_a_queue() -> None:
    harness = Harness()
    admission = harness.admission
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(admission.place(demand())) for _ in range(3))
        assert first.start_now()
        admission.slots.wait(second)
        harness.clock.now_s += 1
        first.leave()
        harness.clock.now_s += 30
        admission.slots.wait(third)
        # One has left after a second; the next burst begins with this rate.
        assert admission.retry_after_s == pytest.approx(1)
        harness.clock.now_s += 3
        second.leave()
        assert admission.retry_after_s == 0


async def test_a_full_queue_at_the_beginning_of_a_burst_has_the_rate_of_the_burst_before() -> None:
    harness = Harness(max_queued_requests=20)
    admission = harness.admission
    with ExitStack() as stack:
        places = [stack.enter_context(admission.place(demand())) for _ in range(21)]
        assert places[0].start_now()
        for place in places[1:]:
            admission.slots.wait(place)
        for place in places:
            harness.clock.now_s += 1
            place.leave()
    harness.clock.now_s += 60
    with ExitStack() as stack:
        places = [stack.enter_context(admission.place(demand())) for _ in range(22)]
        assert places[0].start_now()
        for place in places[1:21]:
            admission.slots.wait(place)
        with pytest.raises(QueueFull) as caught:
            admission.check_queue(places[21].demand)
        assert caught.value.headers == {"Retry-After": "20"}
