"""`specgate bench gain`: what each proposer brings over plain decoding, losses included.

One server holds every proposer, and each request names its own. On each wave of prompts all of
them are measured one after the other, so a gain is the median over waves of a paired ratio. Each
temperature has a fresh server, and each level of concurrency prompts of its own: what remembers
answers (`suffix`) must not have seen them. Under the fixed seed the
text is the same whoever drafts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.estimate import Estimate, paired_ratio
from benchmarks.side import Host, Side, measure
from benchmarks.timeline import Decoding
from benchmarks.workload import KINDS, Messages, Request, chats, waves
from demo.prompts import PromptKind
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.types import NONE

TEMPERATURES = (0.0, 0.7)
LEVELS = (1, 2, 4, 8, 16)
SHORTEST, LONGEST = 48, 192
PILOT_TOKENS = 8
QUICK_PROMPTS = 4
DECODING_SHARE = 0.6
"""Of the time, roughly; the rest reads prompts and starts servers."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What to measure.

    Attributes:
        target: path or id of the model.
        specs: the proposers, all loaded; plain decoding is measured too.
        temperatures, levels, kinds: every combination is measured.
        minutes: how long all of it may take, roughly; sets the length of the answers.
        prompts: how many of each kind, at most; 0 is all.
    """

    target: str
    specs: Sequence[ProposerSpec]
    temperatures: Sequence[float] = TEMPERATURES
    levels: Sequence[int] = LEVELS
    kinds: Sequence[PromptKind] = KINDS
    minutes: float = 35.0
    prompts: int = 0


@dataclass(frozen=True, slots=True)
class Gain:
    """One proposer in one situation.

    Attributes:
        kind, temperature, concurrency: the situation.
        proposer: who drafted.
        tokens_per_s: decode tokens of all streams per second, over all waves.
        tokens_per_step: of one stream, over all waves.
        step_ms: over all waves.
        gain: tokens per second over plain decoding's, paired by wave.
        max_tokens: length of every answer.
        samples: every wave's measurement.
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


async def gain(
    curve: Curve, host: Host, take: Callable[[Gain], None] = lambda result: None
) -> list[Gain]:
    """Measures the whole curve; `take` gets each result as soon as it is there."""
    results: list[Gain] = []
    max_tokens = 0
    for temperature in curve.temperatures:
        async with host.specgate("all", curve.target, curve.specs) as side:
            for spec in curve.specs:
                await side.wave([_warm_up(spec.name)])
            max_tokens = max_tokens or await _length(curve, side)
            for kind in curve.kinds:
                for level, asked in waves(_prompts(curve, kind), curve.levels).items():
                    situation = Situation(kind, temperature, level, max_tokens)
                    for result in await _situation(situation, curve.specs, side, asked):
                        take(result)
                        results.append(result)
    return results


@dataclass(frozen=True, slots=True)
class Situation:
    """What all proposers meet alike; see `Gain`."""

    kind: PromptKind
    temperature: float
    concurrency: int
    max_tokens: int


async def _situation(
    at: Situation,
    specs: Sequence[ProposerSpec],
    side: Side,
    asked: Sequence[Sequence[Messages]],
) -> list[Gain]:
    names = [NONE, *(spec.name for spec in specs)]
    samples: dict[str, list[Decoding]] = {name: [] for name in names}
    for number, wave in enumerate(asked):
        for name in names if number % 2 == 0 else reversed(names):
            requests = [Request(m, at.max_tokens, at.temperature, name) for m in wave]
            samples[name].append(await measure(side, requests))
    return [_pool(at, name, samples[name], samples[NONE]) for name in names]


def _pool(at: Situation, name: str, samples: Sequence[Decoding], plain: Sequence[Decoding]) -> Gain:
    """Longer waves weigh more: all tokens over all seconds, and over all steps."""
    seconds = sum(sample.seconds for sample in samples)
    tokens = sum(sample.tokens_per_s * sample.seconds for sample in samples)
    steps = sum(sample.tokens_per_s * sample.seconds / sample.tokens_per_step for sample in samples)
    return Gain(
        kind=at.kind,
        temperature=at.temperature,
        concurrency=at.concurrency,
        proposer=name,
        tokens_per_s=tokens / seconds,
        tokens_per_step=tokens / steps,
        step_ms=1e3 * seconds * at.concurrency / steps,
        gain=paired_ratio(
            [sample.tokens_per_s for sample in samples], [sample.tokens_per_s for sample in plain]
        ),
        max_tokens=at.max_tokens,
        samples=samples,
    )


async def _length(curve: Curve, side: Side) -> int:
    """The length of answers for which the whole curve takes about `curve.minutes`.

    From the time of a plain step at the least and the most streams; drafts shorten the answer by
    about as much as they lengthen the steps.
    """
    few, many = min(curve.levels), max(curve.levels)
    prompts = _prompts(curve, curve.kinds[0])
    fast = await measure(side, [Request(m, PILOT_TOKENS, proposer=NONE) for m in prompts[:few]])
    slow = await measure(side, [Request(m, PILOT_TOKENS, proposer=NONE) for m in prompts[:many]])
    per_stream = (slow.step_ms - fast.step_ms) / max(many - few, 1)
    per_token_s = 0.0
    for kind in curve.kinds:
        for level, asked in waves(_prompts(curve, kind), curve.levels).items():
            per_token_s += len(asked) * (fast.step_ms + per_stream * (level - few)) / 1e3
    repeated = len(curve.temperatures) * (len(curve.specs) + 1)
    length = curve.minutes * 60 * DECODING_SHARE / (per_token_s * repeated)
    return round(min(max(length, SHORTEST), LONGEST))


def _prompts(curve: Curve, kind: PromptKind) -> list[Messages]:
    return chats(kind)[: curve.prompts or None]


def _warm_up(proposer: str) -> Request:
    """Allocates and compiles what the first use does; no measured prompt."""
    return Request([{"role": "user", "content": "Write a function `warm_up`."}], 16, 0.0, proposer)


HEAD = (
    "| prompts | temperature | streams | proposer | decode tokens/s | tokens per step "
    "| ms per step | times none's tokens/s |",
    "|---|---|---|---|---|---|---|---|",
)


def line(result: Gain) -> str:
    """The result as a row of the table under `HEAD`."""
    return (
        f"| {result.kind} | {result.temperature:g} | {result.concurrency} | `{result.proposer}` "
        f"| {result.tokens_per_s:.1f} | {result.tokens_per_step:.2f} | {result.step_ms:.1f} "
        f"| {'' if result.proposer == NONE else result.gain.text(2)} |"
    )


def tables(results: Sequence[Gain]) -> Iterator[str]:
    """A table for each kind of prompts and temperature, with a column for each concurrency.

    A cell holds decode tokens per second, how many times none's that is, and tokens per step.
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


def _cell(result: Gain) -> str:
    if result.proposer == NONE:
        return f"{result.tokens_per_s:.0f}"
    times = result.gain.median
    shown = f"**{times:.2f}**" if times >= 1 else f"{times:.2f}"
    return f"{result.tokens_per_s:.0f}, x {shown} ({result.tokens_per_step:.2f})"
