"""`specgate bench compare`: Specgate against stock vLLM, one proposer at a time.

All sides run at the same time and are measured in turn, forwards in one round and backwards in the
next, on the same prompts. A disturbance of the machine therefore disturbs all sides, and each round
gives one pair of a side and its base. Half of the rounds use processes that were started in the
reverse order. All requests are greedy: stock vLLM 0.32 on CPU samples from a wrong distribution
when a request has both drafts and a temperature.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import chain

from benchmarks.estimate import Estimate, median_interval, paired_difference, paired_ratio
from benchmarks.servers import wait_until_idle
from benchmarks.sides import DEFAULT_SIDES, Side, loaded_specs, specs_by_name, supported_sides
from benchmarks.system import System, SystemLauncher, measure
from benchmarks.timeline import Decoding
from benchmarks.workload import Messages, Request, chats
from demo.prompts import KINDS
from engine_adapter.proposers.contract import ProposerSpec

PROMPTS = 16

TURNS = 2
"""How often the sides are started: first in their order, then in the reverse order. Each start has
an equal share of the rounds. A process keeps the speed of memory that it gets at its start: of two
equal processes one was 5 % faster on the wide target in one order, and 5 % slower in the other."""


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """What to compare.

    Attributes:
        target: path or id of the model.
        specs: the proposers that the side `all` loads.
        methods: names of the measured proposers; `none` is decoding without a proposer.
        sides: the first is the base of the others.
        levels: numbers of concurrent streams.
        pairs: rounds for each method and level.
        max_tokens: length of every answer.
    """

    target: str
    specs: Sequence[ProposerSpec]
    methods: Sequence[str]
    sides: Sequence[Side] = DEFAULT_SIDES
    levels: Sequence[int] = (1, 8)
    pairs: int = 30
    max_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Comparison:
    """One side's figures compared with its base's; the fields are the keys of `compare.json`.

    Attributes:
        method: name of the proposer, or `none`.
        concurrency: number of streams.
        tokens_per_s, step_ms, tokens_per_step: medians over the rounds.
        ratio: this side's tokens per second over the base's, paired by round.
        added_ms: this side's step time minus the base's, paired by round.
        samples: the measurement of each round.
    """

    method: str
    concurrency: int
    side: Side
    base: Side
    tokens_per_s: float
    step_ms: float
    tokens_per_step: float
    ratio: Estimate
    added_ms: Estimate
    samples: Sequence[Decoding] = field(repr=False)


async def compare(
    plan: ComparisonPlan,
    launcher: SystemLauncher,
    on_result: Callable[[Comparison], None] = lambda result: None,
) -> list[Comparison]:
    """Measures the whole plan; `on_result` receives each result as soon as it is known.

    Raises `ValueError` for a method that is not among the proposers.
    """
    results: list[Comparison] = []
    for method, spec in specs_by_name(plan.methods, plan.specs).items():
        for result in await _compare_method(plan, launcher, method, spec):
            on_result(result)
            results.append(result)
    return results


async def _compare_method(
    plan: ComparisonPlan, launcher: SystemLauncher, method: str, spec: ProposerSpec | None
) -> list[Comparison]:
    """All rounds of one method."""
    sides = supported_sides(plan.sides, spec)
    samples: dict[int, dict[Side, list[Decoding]]] = {
        level: {side: [] for side in sides} for level in plan.levels
    }
    for turn in range(min(TURNS, plan.pairs)):
        rounds = range(turn, plan.pairs, TURNS)
        async with AsyncExitStack() as started:
            systems: dict[Side, System] = {}
            for side in reversed(sides) if turn % 2 else sides:
                system = (
                    launcher.stock(plan.target, spec)
                    if side == Side.STOCK
                    else launcher.specgate(side, plan.target, loaded_specs(side, spec, plan.specs))
                )
                systems[side] = await started.enter_async_context(system)
            for level in plan.levels:
                await _run_rounds(plan, systems, method, level, rounds, samples[level])
    return [
        _comparison(method, level, side, of_level[side], sides[0], of_level[sides[0]])
        for level, of_level in samples.items()
        for side in sides
    ]


async def _run_rounds(
    plan: ComparisonPlan,
    systems: Mapping[Side, System],
    method: str,
    level: int,
    rounds: Sequence[int],
    samples: Mapping[Side, list[Decoding]],
) -> None:
    """Some rounds at one concurrency, forwards and backwards in turn."""
    for system in systems.values():  # what is compiled or allocated on first use
        await system.send_burst(_burst(plan, method, level, rounds[0]))
    for i, number in enumerate(rounds):
        requests = _burst(plan, method, level, number)
        for side in samples if i % 2 == 0 else reversed(list(samples)):
            await wait_until_idle()
            samples[side].append(await measure(systems[side], requests))


def _burst(plan: ComparisonPlan, method: str, level: int, number: int) -> list[Request]:
    prompts = mixed_prompts()
    burst_prompts = [prompts[(number * level + i) % len(prompts)] for i in range(level)]
    return [Request(messages, plan.max_tokens, proposer=method) for messages in burst_prompts]


def mixed_prompts() -> list[Messages]:
    """Quoting and free chats in turn; few, so that the prefix cache soon holds all of them."""
    return list(chain.from_iterable(zip(*(chats(kind) for kind in KINDS), strict=True)))[:PROMPTS]


def _comparison(
    method: str,
    level: int,
    side: Side,
    samples: Sequence[Decoding],
    base: Side,
    base_samples: Sequence[Decoding],
) -> Comparison:
    speeds, steps = [s.tokens_per_s for s in samples], [s.step_ms for s in samples]
    return Comparison(
        method=method,
        concurrency=level,
        side=side,
        base=base,
        tokens_per_s=median_interval(speeds).median,
        step_ms=median_interval(steps).median,
        tokens_per_step=median_interval([s.tokens_per_step for s in samples]).median,
        ratio=paired_ratio(speeds, [s.tokens_per_s for s in base_samples]),
        added_ms=paired_difference(steps, [s.step_ms for s in base_samples]),
        samples=samples,
    )


TABLE_HEAD = (
    "| proposer | streams | side | tokens/s | ms per step | tokens per step "
    "| tokens/s, ratio | ms added to a step |",
    "|---|---|---|---|---|---|---|---|",
)


def table_row(result: Comparison) -> str:
    """The result as a row of the table under `TABLE_HEAD`."""
    is_base = result.side == result.base
    return (
        f"| `{result.method}` | {result.concurrency} | {result.side} | {result.tokens_per_s:.1f} "
        f"| {result.step_ms:.2f} | {result.tokens_per_step:.2f} "
        f"| {'' if is_base else result.ratio.text(3)} "
        f"| {'' if is_base else result.added_ms.text(2, '+')} |"
    )
