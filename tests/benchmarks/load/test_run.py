"""Whole runs against servers that answer with prepared bytes."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.http_stream import Reply
from benchmarks.load import run as load_run
from benchmarks.load.arrivals import Arrivals, ClosedLoop, OpenLoop
from benchmarks.load.prompts import Prompt
from benchmarks.load.run import LoadPlan, LoadRun
from benchmarks.load.samples import Condition, Pass
from benchmarks.load.sides import Side
from benchmarks.load.workloads import Workload
from tests.benchmarks.load.scripted import Server, served
from tests.server.gateway import eventually

PROMPTS = [Prompt(f"p{i}", "quote", {"prompt": f"prompt {i}"}) for i in range(12)]


class Watcher:
    """Notes what it is told."""

    def on_stage(self, description: str) -> None:
        pass

    def __init__(self) -> None:
        self.passes: list[tuple[int, str]] = []
        self.replies = 0
        self.conditions: list[str] = []

    def on_pass(self, condition: Condition, repetition: int, side: str) -> None:
        self.passes.append((repetition, side))

    def on_reply(self, reply: Reply) -> None:
        self.replies += 1

    def on_condition(self, condition: Condition, passes: Sequence[Pass]) -> None:
        self.conditions.append(condition.name)


def plan(url: str, names: Sequence[str] = ("a", "b"), **fields: Any) -> LoadPlan:
    sides = [Side(name, url, body={"side": name}) for name in names]
    known: dict[str, Any] = {
        "workloads": [Workload("own", [[PROMPTS]])],
        "loads": [ClosedLoop(2)],
        "requests": 4,
        "repetitions": 2,
        "max_tokens": 3,
        "warm_up": 1,
    }
    return LoadPlan(sides, **{**known, **fields})


async def measure(made: LoadPlan) -> tuple[LoadRun, Watcher]:
    watcher = Watcher()
    run = LoadRun(made, watcher)
    await run.run()
    return run, watcher


async def test_sides_are_measured_forwards_and_backwards_with_equal_requests() -> None:
    server = Server()
    async with served(server) as url:
        run, watcher = await measure(plan(url, ("a", "b", "c")))
    assert watcher.passes == [(0, "a"), (0, "b"), (0, "c"), (1, "c"), (1, "b"), (1, "a")]
    sent = [
        sorted(
            json.dumps({**b, "side": ""}, sort_keys=True)
            for b in server.measured[4 * number : 4 * number + 4]
        )
        for number in range(6)
    ]
    assert sent[0] == sent[1] == sent[2]
    assert sent[3] == sent[4] == sent[5]
    assert sent[0] != sent[3], "repetitions have different prompts"
    assert [b["side"] for b in server.measured] == [s for _, s in watcher.passes for _ in range(4)]
    assert watcher.replies == 24
    assert all(each.is_complete and len(each.samples) == 4 for each in run.passes)
    assert {s.tokens for each in run.passes for s in each.samples} == {3}


async def test_every_prompt_is_sent_once_before_it_is_measured() -> None:
    server = Server()
    async with served(server) as url:
        await measure(plan(url, repetitions=1, temperatures=(0.0, 0.7), requests=6))
        primed = [b for b in server.bodies if b.get("prompt") and b["max_tokens"] == 1]
        assert len(primed) == 12, "once, although both sides are one server"
        assert {b["prompt"] for b in primed} == {b["prompt"] for b in server.measured}
        for body in primed:
            first = next(b for b in server.measured if b["prompt"] == body["prompt"])
            assert server.bodies.index(body) < server.bodies.index(first)
        server.bodies.clear()
        await measure(plan(url, repetitions=1, prime=False, warm_up=0))
        assert len([b for b in server.bodies if "prompt" in b]) == 8


async def test_workloads_temperatures_and_loads_are_all_combined() -> None:
    server = Server()
    workloads = [Workload("one", [[PROMPTS[:6]]]), Workload("two", [[PROMPTS[6:]]])]
    async with served(server) as url:
        made = plan(url, ("a",), workloads=workloads, temperatures=(0.0, 0.7), repetitions=1)
        _, watcher = await measure(made)
    assert watcher.conditions == [
        f"{name}, temperature {heat}, 2 concurrent"
        for name in ("one", "two")
        for heat in ("0", "0.7")
    ]
    assert [b["temperature"] for b in server.measured] == [0.0] * 4 + [0.7] * 4 + [0.0] * 4 + [
        0.7
    ] * 4


class Stopping(Server):
    """Hangs after a number of completions."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.answers = answers

    async def answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if len(self.bodies) > self.answers:
            await asyncio.sleep(60)
        await super().answer(body, writer)


@pytest.mark.parametrize(
    ("answers", "passes", "sent"),
    [
        (1, 0, 1 + 2),  # the trial; then both warm-ups
        (3, 0, 1 + 2 + 4),  # then the first prompts that are primed
        (13, 1, 1 + 2 + 10 + 10 + 1),  # then the first pass, and one request to see if it lives
    ],
)
async def test_a_server_that_stops_answering_ends_the_run(
    answers: int, passes: int, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_run, "LEAST_LIMIT_S", 0.6)
    server = Stopping(answers)
    async with served(server) as url:
        made = plan(url, ("a",), loads=[ClosedLoop(5)], requests=10, warm_up=2, time_limit_s=0.6)
        run = LoadRun(made, Watcher())
        with pytest.raises(RuntimeError, match=r"--side a: http.* does not answer any more: time"):
            await run.run()
    assert len(run.passes) == passes
    assert len(server.bodies) == sent


async def test_a_slow_server_is_measured_although_every_request_times_out() -> None:
    class Slow(Server):
        async def answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(1.0 if body["max_tokens"] == 3 else 0.0)
            await super().answer(body, writer)

    async with served(Slow()) as url:
        run, _ = await measure(plan(url, ("a",), time_limit_s=0.1))
    assert [s.error for each in run.passes for s in each.samples] == ["timeout"] * 8


async def test_an_interrupted_run_keeps_what_it_has_measured() -> None:
    server = Server(0.05)
    async with served(server) as url:
        run = LoadRun(plan(url, requests=1000, warm_up=0, prime=False), Watcher())
        task = asyncio.create_task(run.run())
        await eventually(lambda: len(server.measured) >= 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (only,) = run.passes
    assert not only.is_complete
    assert len(only.samples) >= 6
    assert only.seconds > 0


SHIFT = Workload("shift", [[PROMPTS[:6]], [PROMPTS[6:]]])


@pytest.mark.parametrize("load", [ClosedLoop(2), OpenLoop(40.0)])
async def test_a_pass_limited_by_time_shifts_at_half_of_its_time(load: Arrivals) -> None:
    server = Server(0.02)
    fields: dict[str, Any] = {"workloads": [SHIFT], "loads": [load], "requests": None}
    async with served(server) as url:
        run, _ = await measure(plan(url, repetitions=1, prime=False, seconds=0.6, **fields))
    for each in run.passes:
        assert len(each.samples) > 4
        for sample in each.samples:
            planned_s = sample.sent_s - sample.late_ms / 1e3
            is_late = int(sample.prompt[1:]) >= 6
            # A closed loop decides before it sends: on a busy machine some time before.
            if is_late or isinstance(load, OpenLoop):
                assert (planned_s > 0.299) == is_late
        if isinstance(load, OpenLoop):  # a closed loop that stalls sends nothing after a half
            assert {int(sample.prompt[1:]) >= 6 for sample in each.samples} == {False, True}
    first, second = ({s.index: s.prompt for s in each.samples} for each in run.passes)
    both = first.keys() & second.keys()
    assert len(both) > 4
    assert all(first[index] == second[index] for index in both), "pairs have equal prompts"


async def test_a_pass_limited_by_requests_shifts_at_half_of_them() -> None:
    server = Server()
    async with served(server) as url:
        run, _ = await measure(plan(url, workloads=[SHIFT], requests=7, repetitions=1))
    numbers = [int(s.prompt[1:]) for s in sorted(run.passes[0].samples, key=lambda s: s.index)]
    assert [number >= 6 for number in numbers] == [False] * 4 + [True] * 3


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="give --requests or --seconds"):
        plan("http://127.0.0.1:9", requests=None)
    with pytest.raises(ValueError, match="two sides have the name 'a'"):
        plan("http://127.0.0.1:9", ("a", "b", "a"))


def test_an_open_loop_plans_enough_requests_for_its_time() -> None:
    made = plan("http://127.0.0.1:9", requests=None, seconds=10.0, loads=[OpenLoop(5.0, 0.1)])
    count = made.count(made.loads[0])
    assert made.loads[0].times_s(count, 1)[-1] > 10.0  # type: ignore[union-attr]
    assert count < 2000
