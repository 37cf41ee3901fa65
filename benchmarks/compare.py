"""`specgate bench compare`: Specgate beside stock vLLM, one proposer at a time.

The sides run at once and are measured in turn, forwards in one round and backwards in the next, on
the same prompts. So what disturbs the machine disturbs them alike, and a round gives a pair for
each side and its base. Half of the rounds are with processes that were started in the reverse
order. Greedy only: stock vLLM 0.32 samples wrongly on CPU when drafts meet a temperature.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import chain

from benchmarks.estimate import Estimate, median_interval, paired_difference, paired_ratio
from benchmarks.side import Host, Side, measure
from benchmarks.timeline import Decoding
from benchmarks.workload import KINDS, Messages, Request, chats
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.types import NONE

STOCK_METHODS = frozenset({"ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa"})
"""Methods that vLLM 0.32 has too."""

SIDES = ("stock", "one", "all")
"""Stock vLLM with the proposer; Specgate with it alone; Specgate with all of them loaded."""

PROMPTS = 16

TURNS = 2
"""How often the sides are started, in their order and then in the reverse one; each turn has its
share of the rounds. How fast a process reads memory is settled for its life when it starts: of two
alike one was 5 % faster on the wide target in one order, and 5 % slower in the other."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to compare.

    Attributes:
        target: path or id of the model.
        specs: the proposers that the side `all` loads.
        methods: names of those that are measured, and `none`.
        sides: of `SIDES`; the first is what the others are compared with.
        levels: concurrent streams.
        pairs: rounds for each method and level.
        max_tokens: length of every answer.
    """

    target: str
    specs: Sequence[ProposerSpec]
    methods: Sequence[str]
    sides: Sequence[str] = SIDES
    levels: Sequence[int] = (1, 8)
    pairs: int = 30
    max_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Compared:
    """One side's figures beside its base's.

    Attributes:
        method: who drafted.
        concurrency: streams at once.
        tokens_per_s, step_ms, tokens_per_step: medians over the rounds.
        ratio: of tokens per second to the base's, paired.
        added_ms: to a step, over the base's, paired.
        samples: every round's measurement.
    """

    method: str
    concurrency: int
    side: str
    base: str
    tokens_per_s: float
    step_ms: float
    tokens_per_step: float
    ratio: Estimate
    added_ms: Estimate
    samples: Sequence[Decoding] = field(repr=False)


async def compare(
    plan: Comparison, host: Host, take: Callable[[Compared], None] = lambda result: None
) -> list[Compared]:
    """Measures everything of the plan; `take` gets each result as soon as it is there.

    Raises `ValueError` for a method that is not among the proposers.
    """
    by_name = {spec.name: spec for spec in plan.specs}
    for method in plan.methods:
        if method != NONE and method not in by_name:
            raise ValueError(f"no proposer {method!r}; there are {', '.join(by_name)}")
    results: list[Compared] = []
    for method in plan.methods:
        for result in await _method(plan, host, method, by_name):
            take(result)
            results.append(result)
    return results


async def _method(
    plan: Comparison, host: Host, method: str, by_name: Mapping[str, ProposerSpec]
) -> list[Compared]:
    """All rounds of one method."""
    spec = by_name.get(method)
    stock = spec is None or spec.method in STOCK_METHODS
    names = [name for name in plan.sides if stock or name != "stock"]
    loaded = {"one": _needed(spec, by_name), "all": plan.specs}
    samples: dict[int, dict[str, list[Decoding]]] = {
        level: {name: [] for name in names} for level in plan.levels
    }
    for turn in range(min(TURNS, plan.pairs)):
        rounds = range(turn, plan.pairs, TURNS)
        async with AsyncExitStack() as started:
            sides: dict[str, Side] = {}
            for name in reversed(names) if turn % 2 else names:
                side = (
                    host.stock(plan.target, spec)
                    if name == "stock"
                    else host.specgate(name, plan.target, loaded[name])
                )
                sides[name] = await started.enter_async_context(side)
            for level in plan.levels:
                await _rounds(plan, sides, method, level, rounds, samples[level])
    return [
        _compared(method, level, name, of_level[name], names[0], of_level[names[0]])
        for level, of_level in samples.items()
        for name in names
    ]


def _needed(
    spec: ProposerSpec | None, by_name: Mapping[str, ProposerSpec]
) -> Sequence[ProposerSpec]:
    """The proposer with those that it is made of."""
    if spec is None:
        return []
    return [*(by_name[name] for name in spec.options.get("members", ())), spec]


async def _rounds(
    plan: Comparison,
    sides: Mapping[str, Side],
    method: str,
    level: int,
    rounds: Sequence[int],
    samples: Mapping[str, list[Decoding]],
) -> None:
    """Some rounds at one concurrency, forwards and backwards in turn."""
    for side in sides.values():  # what is compiled or allocated on first use
        await side.wave(_wave(plan, method, level, rounds[0]))
    for i, number in enumerate(rounds):
        requests = _wave(plan, method, level, number)
        for name in samples if i % 2 == 0 else reversed(list(samples)):
            samples[name].append(await measure(sides[name], requests))


def _wave(plan: Comparison, method: str, level: int, number: int) -> list[Request]:
    prompts = mixed_prompts()
    chosen = [prompts[(number * level + i) % len(prompts)] for i in range(level)]
    return [Request(messages, plan.max_tokens, proposer=method) for messages in chosen]


def mixed_prompts() -> list[Messages]:
    """Quoting and free chats in turn; few, so that the prefix cache soon holds them."""
    return list(chain.from_iterable(zip(*(chats(kind) for kind in KINDS), strict=True)))[:PROMPTS]


def _compared(
    method: str,
    level: int,
    side: str,
    samples: Sequence[Decoding],
    base: str,
    base_samples: Sequence[Decoding],
) -> Compared:
    speeds, steps = [s.tokens_per_s for s in samples], [s.step_ms for s in samples]
    return Compared(
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


HEAD = (
    "| proposer | streams | side | tokens/s | ms per step | tokens per step "
    "| tokens/s, ratio | ms added to a step |",
    "|---|---|---|---|---|---|---|---|",
)


def line(result: Compared) -> str:
    """The result as a row of the table under `HEAD`."""
    base = result.side == result.base
    return (
        f"| `{result.method}` | {result.concurrency} | {result.side} | {result.tokens_per_s:.1f} "
        f"| {result.step_ms:.2f} | {result.tokens_per_step:.2f} "
        f"| {'' if base else result.ratio.text(3)} "
        f"| {'' if base else result.added_ms.text(2, '+')} |"
    )
