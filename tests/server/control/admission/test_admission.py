"""The limits of the queue, and what is counted of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from server.control.admission.admission import Admission
from server.control.admission.limit_errors import QueueFull
from server.control.admission.request_cost import RequestCost
from server.control.admission.slots import SlotLimits
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
            SlotLimits(1, 1, 0, 1, 512),
            LimitSettings(**fields),
            AdmissionMetrics(MetricMaker(self.registry)),
            self.clock,
        )

    def limited(self, reason: str) -> float | None:
        return self.value("specgate_limited_requests_total", reason=reason)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def cost(tokens: int = 10, key: str | None = None) -> RequestCost:
    return RequestCost(key, 1, [tokens], tokens)


async def test_a_full_queue_is_refused_and_counted() -> None:
    harness = Harness()
    admission = harness.admission
    with ExitStack() as stack:
        tickets = [stack.enter_context(admission.ticket(cost())) for _ in range(4)]
        assert tickets[0].start_now()
        for ticket in tickets[1:3]:
            admission.make_room(ticket.cost)
            admission.slots.wait(ticket)
        with pytest.raises(QueueFull) as caught:
            admission.make_room(tickets[3].cost)
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
            stack.enter_context(admission.ticket(cost(tokens))) for tokens in (1, 500, 1)
        )
        assert first.start_now()
        admission.make_room(long.cost)
        admission.slots.wait(long)
        with pytest.raises(QueueFull):
            admission.make_room(second.cost)


async def test_retry_after_is_the_time_in_which_the_queue_empties() -> None:
    harness = Harness(max_queued_requests=10)
    admission = harness.admission
    with ExitStack() as stack:
        tickets = [stack.enter_context(admission.ticket(cost())) for _ in range(11)]
        assert tickets[0].start_now()
        for ticket in tickets[1:]:
            admission.slots.wait(ticket)
        for ticket in tickets[:5]:
            harness.clock.now_s += 2
            ticket.leave()
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
        first, second, third = (stack.enter_context(admission.ticket(cost())) for _ in range(3))
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
        tickets = [stack.enter_context(admission.ticket(cost())) for _ in range(21)]
        assert tickets[0].start_now()
        for ticket in tickets[1:]:
            admission.slots.wait(ticket)
        for ticket in tickets:
            harness.clock.now_s += 1
            ticket.leave()
    harness.clock.now_s += 60
    with ExitStack() as stack:
        tickets = [stack.enter_context(admission.ticket(cost())) for _ in range(22)]
        assert tickets[0].start_now()
        for ticket in tickets[1:21]:
            admission.slots.wait(ticket)
        with pytest.raises(QueueFull) as caught:
            admission.make_room(tickets[21].cost)
        assert caught.value.headers == {"Retry-After": "20"}


class Waiting:
    """Requests that wait in the queue, each in a task of its own; `ended` has how they ended."""

    def __init__(self, harness: Harness) -> None:
        self.admission = harness.admission
        self.ended: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, name: str, key: str, tokens: int = 10, priority: int = 0) -> None:
        """A request that waits for its turn, or is refused."""
        wanted = RequestCost(key, 1, [tokens], tokens, priority)
        self._tasks.append(asyncio.create_task(self._run(name, wanted)))
        await settle()

    async def check(self, name: str, key: str, tokens: int = 10) -> None:
        """A request whose constraints are checked without an end."""
        wanted = RequestCost(key, 1, [tokens], tokens)
        self._tasks.append(asyncio.create_task(self._run(name, wanted, checks=True)))
        await settle()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, name: str, wanted: RequestCost, *, checks: bool = False) -> None:
        try:
            with self.admission.ticket(wanted) as ticket:
                if checks:
                    with self.admission.checked(ticket):
                        await asyncio.Event().wait()
                self.admission.make_room(wanted)
                await ticket.start()
                self.ended[name] = "begun"
                await asyncio.Event().wait()
        except QueueFull:
            self.ended[name] = "refused"
        except asyncio.CancelledError as cancelled:
            if cancelled.args:
                (error,) = cancelled.args
                assert isinstance(error, QueueFull)
                assert "no API key has more in it than this one" in error.message
                self.ended[name] = "displaced"


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def busy(**limits: Any) -> AsyncIterator[tuple[Harness, Waiting]]:
    """An admission whose only slot is taken."""
    harness = Harness(**limits)
    with harness.admission.ticket(cost()) as running:
        assert running.start_now()
        waiting = Waiting(harness)
        yield harness, waiting
        await waiting.stop()
    assert harness.value("specgate_queued_requests") == 0
    assert harness.value("specgate_queued_prompt_tokens") == 0
    assert harness.admission.slots.in_use == 0


async def test_a_full_queue_takes_the_newest_place_of_the_key_that_queues_most() -> None:
    async with busy(max_queued_requests=4) as (harness, waiting):
        for name in ("a1", "a2", "a3", "a4"):
            await waiting.come(name, "alice")
        await waiting.come("a5", "alice")
        assert waiting.ended == {"a5": "refused"}
        await waiting.come("b1", "bob")
        assert waiting.ended == {"a5": "refused", "a4": "displaced"}
        await waiting.come("b2", "bob")
        # Both have two now: a third one of either would only change who has more.
        await waiting.come("b3", "bob")
        await waiting.come("a6", "alice")
        ended = {"a4": "displaced", "a3": "displaced"}
        assert waiting.ended == {"a5": "refused", **ended, "b3": "refused", "a6": "refused"}
        await waiting.come("c1", "carol")
        assert list(waiting.ended.items())[-1] == ("a2", "displaced")
        assert harness.limited("server_overloaded") == 6
        assert harness.value("specgate_queued_requests") == 4


async def test_keys_that_queue_as_much_as_each_other_do_not_displace_each_other() -> None:
    async with busy(max_queued_requests=2) as (_, waiting):
        await waiting.come("a", "alice")
        await waiting.come("b", "bob")
        await waiting.come("c", "carol")
        assert waiting.ended == {"c": "refused"}


async def test_of_a_key_the_highest_priority_value_is_displaced_first() -> None:
    async with busy(max_queued_requests=3) as (_, waiting):
        await waiting.come("late", "alice", priority=5)
        await waiting.come("first", "alice")
        await waiting.come("newest", "alice")
        await waiting.come("b1", "bob", priority=9)
        assert waiting.ended == {"late": "displaced"}


async def test_prompt_tokens_are_shared_like_places() -> None:
    async with busy(max_queued_requests=100) as (harness, waiting):
        for name in ("a1", "a2", "a3", "a4"):
            await waiting.come(name, "alice", tokens=25)
        await waiting.come("b1", "bob", tokens=40)
        assert waiting.ended == {"a4": "displaced", "a3": "displaced"}
        assert harness.value("specgate_queued_prompt_tokens") == 90
        await waiting.come("b2", "bob", tokens=20)
        await waiting.come("a5", "alice", tokens=20)
        assert waiting.ended == {
            "a4": "displaced",
            "a3": "displaced",
            "b2": "refused",
            "a5": "refused",
        }


async def test_a_request_that_gets_no_place_displaces_nothing() -> None:
    async with busy(max_queued_requests=3) as (harness, waiting):
        for name in ("a1", "a2", "a3"):
            await waiting.come(name, "alice", tokens=30)
        # It would get one of the tickets, but not so many prompt tokens.
        await waiting.come("b1", "bob", tokens=80)
        assert waiting.ended == {"b1": "refused"}
        assert harness.value("specgate_queued_requests") == 3


async def test_a_request_whose_constraints_are_checked_is_displaced_too() -> None:
    async with busy() as (_, waiting):
        await waiting.come("a1", "alice")
        await waiting.check("a2", "alice")
        await waiting.check("b1", "bob")
        assert waiting.ended == {"a2": "displaced"}


@pytest.mark.parametrize("is_open", [True, False])
async def test_what_has_no_chance_is_known_before_the_body(is_open: bool) -> None:
    async with busy() as (harness, waiting):
        refusal = harness.admission.refusal
        if not is_open:
            harness.admission.slots.close()
        assert refusal("alice") is None
        await waiting.come("a1", "alice")
        await waiting.come("a2", "alice")
        error = refusal("alice")
        assert isinstance(error, QueueFull)
        assert error.message.startswith("The server is overloaded: its queue is full (2 of 2")
        # Another key has a chance; after it, none has.
        assert refusal("bob") is None
        await waiting.come("b1", "bob")
        assert refusal("bob") is not None
        assert refusal("carol") is not None
        harness.admission.slots.open()


async def test_nothing_is_refused_before_the_body_while_a_slot_is_free() -> None:
    harness = Harness(max_queued_requests=0)
    assert harness.admission.refusal("alice") is None
    with harness.admission.ticket(cost()) as running:
        assert running.start_now()
        assert harness.admission.refusal("alice") is not None
