"""`specgate bench gain`: the speedup of each proposer over plain decoding, slowdowns included.

One server loads every proposer, and each request names its own. Each burst of prompts is measured
with all of them, one after the other, so a speedup is the median over bursts of a paired ratio.
Each temperature has a new server, and each level of concurrency has its own prompts: a proposer
that remembers answers (`suffix`) must not have seen them. The seed is fixed, so the text does not
depend on the proposer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.estimate import Estimate, paired_ratio
from benchmarks.system import System, SystemLauncher, measure
from benchmarks.timeline import Decoding
from benchmarks.workload import Messages, Request, bursts, chats
from demo.prompts import KINDS, PromptKind
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.types import NONE

TEMPERATURES = (0.0, 0.7)
LEVELS = (1, 2, 4, 8, 16)
SHORTEST, LONGEST = 48, 192
PILOT_TOKENS = 8
LESSON_TOKENS = 160
"""Tokens of each answer from which a policy learns before it is measured."""
QUICK_PROMPTS = 4
DECODING_SHARE = 0.6
"""Rough share of the time that decoding takes; the rest is prefill and starting servers."""


@dataclass(frozen=True, slots=True)
class SpeedupPlan:
    """What to measure.

    Attributes:
        target: path or id of the model.
        specs: the proposers, all loaded; plain decoding is measured too.
        temperatures, levels, kinds: every combination is measured.
        minutes: approximate duration of the whole plan; determines the length of the answers.
        prompts: the most prompts of each kind; 0 is all.
        policies: measured like proposers.
    """

    target: str
    specs: Sequence[ProposerSpec]
    temperatures: Sequence[float] = TEMPERATURES
    levels: Sequence[int] = LEVELS
    kinds: Sequence[PromptKind] = KINDS
    minutes: float = 35.0
    prompts: int = 0
    policies: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """What is measured: plain decoding, every proposer, every policy."""
        return [NONE, *(spec.name for spec in self.specs), *self.policies]


@dataclass(frozen=True, slots=True)
class Speedup:
    """One proposer in one situation; the fields are the keys of `gain.json`.

    Attributes:
        kind, temperature, concurrency: the situation.
        proposer: name of the proposer, or `none`.
        tokens_per_s: decode tokens of all streams per second, over all bursts.
        tokens_per_step: of one stream, over all bursts.
        step_ms: over all bursts.
        gain: the speedup: tokens per second over those of plain decoding, paired by burst.
        max_tokens: length of every answer.
        samples: the measurement of each burst.
    """

    kind: PromptKind
    temperature: float
    concurrency: int
    proposer: str
    tokens_per_s: float
    tokens_per_step: float
    step_ms: float
    gain: Estimate
    max_tokens: int
    samples: Sequence[Decoding] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Situation:
    """The conditions under which all proposers are measured; see `Speedup`."""

    kind: PromptKind
    temperature: float
    concurrency: int
    max_tokens: int


async def measure_speedups(
    plan: SpeedupPlan,
    launcher: SystemLauncher,
    on_result: Callable[[Speedup], None] = lambda result: None,
) -> list[Speedup]:
    """Measures the whole plan; `on_result` receives each result as soon as it is known."""
    results: list[Speedup] = []
    max_tokens = 0
    for temperature in plan.temperatures:
        specs = without_memory(plan.specs) if plan.policies else plan.specs
        async with launcher.specgate("all", plan.target, specs) as system:
            for spec in plan.specs:
                await system.send_burst([_warm_up(spec.name)])
            for policy in plan.policies:
                for rows in (1, *plan.levels):
                    await system.send_burst([_lesson(plan, policy, temperature)] * rows)
            max_tokens = max_tokens or await _answer_length(plan, system)
            for kind in plan.kinds:
                for level, prompts in bursts(_prompts(plan, kind), plan.levels).items():
                    situation = Situation(kind, temperature, level, max_tokens)
                    for result in await _measure_situation(situation, plan.names, system, prompts):
                        on_result(result)
                        results.append(result)
    return results


async def _measure_situation(
    situation: Situation,
    names: Sequence[str],
    system: System,
    prompts: Sequence[Sequence[Messages]],
) -> list[Speedup]:
    samples: dict[str, list[Decoding]] = {name: [] for name in names}
    for number, burst in enumerate(prompts):
        for name in names if number % 2 == 0 else reversed(names):
            requests = [
                Request(m, situation.max_tokens, situation.temperature, name) for m in burst
            ]
            samples[name].append(await measure(system, requests))
    return [_aggregate(situation, name, samples[name], samples[NONE]) for name in names]


def _aggregate(
    situation: Situation, name: str, samples: Sequence[Decoding], plain: Sequence[Decoding]
) -> Speedup:
    """All tokens over all seconds, and over all steps, so that longer bursts weigh more."""
    seconds = sum(sample.seconds for sample in samples)
    tokens = sum(sample.tokens_per_s * sample.seconds for sample in samples)
    steps = sum(sample.tokens_per_s * sample.seconds / sample.tokens_per_step for sample in samples)
    return Speedup(
        kind=situation.kind,
        temperature=situation.temperature,
        concurrency=situation.concurrency,
        proposer=name,
        tokens_per_s=tokens / seconds,
        tokens_per_step=tokens / steps,
        step_ms=1e3 * seconds * situation.concurrency / steps,
        gain=paired_ratio(
            [sample.tokens_per_s for sample in samples], [sample.tokens_per_s for sample in plain]
        ),
        max_tokens=situation.max_tokens,
        samples=samples,
    )


async def _answer_length(plan: SpeedupPlan, system: System) -> int:
    """The answer length in tokens with which the whole plan takes about `plan.minutes`.

    Estimated from the time of a plain step at the lowest and the highest concurrency; drafts
    reduce the number of steps by about as much as they lengthen a step.
    """
    low, high = min(plan.levels), max(plan.levels)
    prompts = _prompts(plan, plan.kinds[0])
    fast = await measure(system, [Request(m, PILOT_TOKENS, proposer=NONE) for m in prompts[:low]])
    slow = await measure(system, [Request(m, PILOT_TOKENS, proposer=NONE) for m in prompts[:high]])
    per_stream = (slow.step_ms - fast.step_ms) / max(high - low, 1)
    per_token_s = 0.0
    for kind in plan.kinds:
        for level, of_level in bursts(_prompts(plan, kind), plan.levels).items():
            per_token_s += len(of_level) * (fast.step_ms + per_stream * (level - low)) / 1e3
    repeated = len(plan.temperatures) * len(plan.names)
    length = plan.minutes * 60 * DECODING_SHARE / (per_token_s * repeated)
    return round(min(max(length, SHORTEST), LONGEST))


def _prompts(plan: SpeedupPlan, kind: PromptKind) -> list[Messages]:
    return chats(kind)[: plan.prompts or None]


def _warm_up(proposer: str) -> Request:
    """Triggers what is compiled or allocated on first use; its prompt is not measured."""
    return Request([{"role": "user", "content": "Write a function `warm_up`."}], 16, 0.0, proposer)


def without_memory(specs: Sequence[ProposerSpec]) -> list[ProposerSpec]:
    """The specs without suffix trees of earlier answers.

    Every prompt is sent once with each proposer. A policy tries the suffix trees in every answer,
    so both would find the answer to their prompt there.
    """
    option = "suffix_decoding_max_cached_requests"
    return [
        replace(spec, options={**spec.options, option: 0}) if option in spec.options else spec
        for spec in specs
    ]


def _lesson(plan: SpeedupPlan, policy: str, temperature: float) -> Request:
    """Lets a policy measure the times of steps and of drafting; its prompt is not measured."""
    text = (
        "Write a function `add_all` that adds the numbers of a list, and explain each line of it."
    )
    return Request([{"role": "user", "content": text}], LESSON_TOKENS, temperature, policy)


TABLE_HEAD = (
    "| prompts | temperature | streams | proposer | decode tokens/s | tokens per step "
    "| ms per step | times none's tokens/s |",
    "|---|---|---|---|---|---|---|---|",
)


def table_row(result: Speedup) -> str:
    """The result as a row of the table under `TABLE_HEAD`."""
    return (
        f"| {result.kind} | {result.temperature:g} | {result.concurrency} | `{result.proposer}` "
        f"| {result.tokens_per_s:.1f} | {result.tokens_per_step:.2f} | {result.step_ms:.1f} "
        f"| {'' if result.proposer == NONE else result.gain.text(2)} |"
    )


def tables(results: Sequence[Speedup]) -> Iterator[str]:
    """A table for each kind of prompts and temperature, with a column for each concurrency.

    A cell holds decode tokens per second, the speedup over `none`, and tokens per step.
    """
    for kind, temperature in dict.fromkeys((r.kind, r.temperature) for r in results):
        here = [r for r in results if (r.kind, r.temperature) == (kind, temperature)]
        levels = list(dict.fromkeys(r.concurrency for r in here))
        yield f"**{kind} prompts, temperature {temperature:g}**"
        yield ""
        yield f"| proposer | {' | '.join(_streams(level) for level in levels)} |"
        yield f"|---{'|---' * len(levels)}|"
        for name in dict.fromkeys(r.proposer for r in here):
            cells = [_cell(r) for r in here if r.proposer == name]
            yield f"| `{name}` | {' | '.join(cells)} |"
        yield ""


def _streams(level: int) -> str:
    return f"{level} stream" if level == 1 else f"{level} streams"


def _cell(result: Speedup) -> str:
    if result.proposer == NONE:
        return f"{result.tokens_per_s:.0f}"
    speedup = result.gain.median
    text = f"**{speedup:.2f}**" if speedup >= 1 else f"{speedup:.2f}"
    return f"{result.tokens_per_s:.0f}, x {text} ({result.tokens_per_step:.2f})"
