"""The measurement: CPU time, latency at half load, and many streams; each side in turn."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks.gateway.client import Stream
from benchmarks.gateway.figures import Cost, Latency, latency, split_cost
from benchmarks.gateway.profiled import BEGIN, END
from benchmarks.gateway.sides import SPECGATE, Answer, Setup, Side, running_sides

CONCURRENCY, STREAMS = 64, 128
"""Streams at a time while CPU time is measured, and of a turn."""

MANY_STEP_MS, MANY_TOKENS = 100.0, 64
"""Time between the deltas of many streams, and their tokens."""

_TRIALS = 2
"""Turns that find the rate of half load."""

_SEED = 2026

PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """What to measure.

    Attributes:
        engine: `fake`, or `vllm` for vLLM's front end without its core.
        tokens: of a stream.
        deltas: tokens per event, each measured.
        rounds: turns of each side.
        seconds: of a turn at half load; 0 leaves it out.
        step_ms: between the events of a stream at half load.
        rate: streams per second at half load; `None` finds it.
        streams: at once in the last part; 0 leaves it out.
        folder: for logs and recordings.
    """

    engine: str
    tokens: int
    deltas: Sequence[int]
    rounds: int
    seconds: float
    step_ms: float
    rate: float | None
    streams: int
    folder: Path


@dataclass(slots=True)
class GatewayResults:
    """The figures, by part.

    Attributes:
        rate: requests per second at half load; 0 if it was not measured.
    """

    costs: list[Cost]
    rate: float
    half_load: list[Latency]
    many: list[Latency]


async def measure(plan: GatewayPlan, print_line: PrintLine) -> GatewayResults:
    """Measures everything. Raises `RuntimeError` if a stream is lost or incomplete."""
    results = GatewayResults([], 0.0, [], [])
    for deltas in _together(plan):
        results.costs += await _costs(plan, deltas, print_line)
    if plan.engine != "fake":
        # vLLM's front ends merge the deltas of a stream that is late: its events cannot be counted.
        return results
    if plan.seconds:
        print_line("half load")
        stream_us = next(
            statistics.median(cost.stream_us) for cost in results.costs if cost.side == SPECGATE
        )
        results.rate, results.half_load = await _half_load(plan, plan.rate or 0.5e6 / stream_us)
    if plan.streams:
        print_line(f"{plan.streams} streams at once")
        results.many = await _many(plan)
    return results


async def profile(plan: GatewayPlan, streams: int) -> tuple[Path, int]:
    """Profiles Specgate over a number of streams; returns the profile and the number of events."""
    path = plan.folder / "gateway.pstats"
    path.unlink(missing_ok=True)
    answer = Answer(plan.tokens, plan.deltas[0])
    async with running_sides(Setup("fake", [answer], 0, plan.folder, path)) as sides:
        side = next(candidate for candidate in sides if candidate.name == SPECGATE)
        load = side.loads[answer]
        await load.in_turn(CONCURRENCY, CONCURRENCY)
        side.server.signal(BEGIN)
        await load.in_turn(streams, CONCURRENCY)
        side.server.signal(END)
    return path, streams * load.num_events


def _together(plan: GatewayPlan) -> Iterator[Sequence[int]]:
    """The deltas that the same servers can have."""
    if plan.engine == "fake":
        yield plan.deltas
    else:
        yield from ((delta,) for delta in plan.deltas)


async def _costs(plan: GatewayPlan, deltas: Sequence[int], print_line: PrintLine) -> list[Cost]:
    answers = [Answer(tokens, delta) for delta in deltas for tokens in (1, plan.tokens)]
    costs: list[Cost] = []
    async with running_sides(Setup(plan.engine, answers, 0, plan.folder)) as sides:
        for delta in deltas:
            print_line(f"CPU time, {delta} per event")
            short, long = Answer(1, delta), Answer(plan.tokens, delta)
            samples: dict[str, list[tuple[float, float]]] = {side.name: [] for side in sides}
            for number in range(plan.rounds + 1):
                for side in sides[:: -1 if number % 2 else 1]:
                    sample = await _turn(side, short), await _turn(side, long)
                    if number:  # the first round warms up
                        samples[side.name].append(sample)
            for side in sides:
                events = side.loads[short].num_events, side.loads[long].num_events
                costs.append(split_cost(side.name, long, events, samples[side.name]))
    return costs


async def _turn(side: Side, answer: Answer) -> float:
    """CPU microseconds of the server for a stream."""
    before_s = side.server.thread_cpu_s()
    await side.loads[answer].in_turn(STREAMS, CONCURRENCY)
    return 1e6 * (side.server.thread_cpu_s() - before_s) / STREAMS


async def _half_load(plan: GatewayPlan, rate: float) -> tuple[float, list[Latency]]:
    """Latency at the rate that keeps one core half busy with Specgate, and that rate.

    The arrivals are random, and the same for all sides. An event with a time of its own costs more
    than one of many that are sent at once, so `rate`, which is from those, is only a first guess.
    """
    answer = Answer(plan.tokens, plan.deltas[0])
    random = np.random.default_rng(_SEED)

    def arrivals() -> list[float]:
        number = random.poisson(rate * plan.seconds)
        return cast(list[float], np.sort(random.uniform(0, plan.seconds, number)).tolist())

    async with running_sides(_setup(plan, answer, plan.step_ms)) as sides:
        specgate = [side for side in sides if side.name == SPECGATE]
        for _ in range(0 if plan.rate else _TRIALS):
            (tried,) = await _at_times(specgate, plan.step_ms, answer, [arrivals()])
            rate *= min(1.0, 0.5 / tried.busy)
        turns = [arrivals() for _ in range(plan.rounds)]
        return rate, await _at_times(sides, plan.step_ms, answer, turns)


async def _many(plan: GatewayPlan) -> list[Latency]:
    answer = Answer(MANY_TOKENS, plan.deltas[0])
    async with running_sides(_setup(plan, answer, MANY_STEP_MS)) as sides:
        return await _at_times(sides, MANY_STEP_MS, answer, [[0.0] * plan.streams])


def _setup(plan: GatewayPlan, answer: Answer, step_ms: float) -> Setup:
    return Setup(plan.engine, [answer], step_ms, plan.folder)


async def _at_times(
    sides: Sequence[Side], step_ms: float, answer: Answer, turns: Sequence[Sequence[float]]
) -> list[Latency]:
    """Sends the requests of every turn to every side."""
    seen: dict[str, list[Stream]] = {side.name: [] for side in sides}
    cpu_s, seconds = dict.fromkeys(seen, 0.0), dict.fromkeys(seen, 0.0)
    for number, times_s in enumerate(turns):
        for side in sides[:: -1 if number % 2 else 1]:
            await side.loads[answer].in_turn(CONCURRENCY, CONCURRENCY)
            before_s, began_s = side.server.thread_cpu_s(), time.monotonic()
            seen[side.name] += await side.loads[answer].at_times(times_s)
            cpu_s[side.name] += side.server.thread_cpu_s() - before_s
            seconds[side.name] += time.monotonic() - began_s
    return [
        latency(
            side.name,
            seen[side.name],
            side.recordings[answer],
            step_ms / 1e3,
            cpu_s[side.name],
            seconds[side.name],
            side.server.rss_bytes(),
        )
        for side in sides
    ]
