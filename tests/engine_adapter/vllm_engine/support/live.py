"""Runs requests on real engines in tests, and compares their results with stock vLLM."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine_adapter.seam.counts import ProposerCounts, SpecStats, StepReport
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.types import (
    FinishReason,
    GenerationRequest,
    LoraAdapter,
    SamplingOptions,
    SpecDecodeParams,
    SpecMethod,
    Switch,
)
from engine_adapter.vllm_engine.patches.prompt_logprobs import pieces_of
from tests.engine_adapter.vllm_engine.support.processes import fork_engines

TIE = 1e-4
"""Greedy outputs may differ only where the two best logits are closer than this."""

RANDOM = "random"
"""The method of rows that `planning_at_random` plans at random."""

CHEAT = "cheat"
"""The proposer whose drafts `cheating` cuts."""

_ids = itertools.count()

Prompt = tuple[int, ...]


@dataclass
class Recorder:
    """An observer that keeps every step's report."""

    steps: list[StepReport] = field(default_factory=list)
    restarts: list[bool] = field(default_factory=list)
    made: asyncio.Event = field(default_factory=asyncio.Event)

    def on_step(self, report: StepReport) -> None:
        self.steps.append(report)
        self.made.set()

    def on_restart(self, succeeded: bool) -> None:
        self.restarts.append(succeeded)

    async def more(self, steps: int) -> None:
        """Waits until the engine has made this many further steps."""
        target = len(self.steps) + steps
        async with asyncio.timeout(120):
            while len(self.steps) < target:
                self.made.clear()
                await self.made.wait()

    def totals(self, since: int = 0) -> dict[str, ProposerCounts]:
        """The sum of the steps from `since` on, by proposer."""
        return add_counts(report.verified for report in self.steps[since:])


@dataclass
class Live:
    """A started engine with its reports, its metrics and its processes."""

    engine: Engine
    recorder: Recorder
    registry: Any
    processes: frozenset[Any] = frozenset()
    epoch: int = 0

    async def switch(self, name: str, k: int = 0, *, running: bool = True) -> SpecMethod:
        """Makes a method the default; returns it, for the requests that follow."""
        self.epoch += 1
        method = SpecMethod(name, k)
        await self.engine.switch(Switch(method, self.epoch), running=running)
        return method

    def metric(self, name: str, **labels: str) -> float:
        """A counter's value, summed over the labels that are not given."""
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@dataclass(frozen=True)
class Result:
    """A finished sequence."""

    tokens: tuple[int, ...]
    text: str
    spec: SpecStats
    finish_reason: FinishReason
    num_cached_tokens: int
    token_times: tuple[float, ...]

    def counts(self, name: str) -> ProposerCounts:
        return self.spec.by_proposer.get(name, ProposerCounts())


def greedy(max_tokens: int, **options: Any) -> SamplingOptions:
    """Greedy sampling of exactly `max_tokens` tokens."""
    return SamplingOptions(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **options)


def pinned(name: str, k: int) -> SpecDecodeParams:
    """The parameters of a request that names its proposer."""
    return SpecDecodeParams(SpecMethod(name, k), pinned=True)


async def repeat_until_it_happens(
    attempt: Callable[[int], Awaitable[bool]], attempts: int = 10
) -> None:
    """Runs a check again until what it is about has happened in it.

    For what a busy machine can delay until the requests that it should meet have ended. A check
    gets its number, and asserts what must hold in either case.
    """
    for number in range(attempts):
        if await attempt(number):
            return
    raise AssertionError(f"it did not happen in {attempts} attempts")


async def generate(
    live: Live,
    prompt: Prompt,
    sampling: SamplingOptions,
    spec: SpecDecodeParams | None = None,
    adapter: LoraAdapter | None = None,
    **fields: Any,
) -> Result:
    """Runs one sequence to its end. Without `spec` it starts with plain decoding, not pinned.

    `fields` are more fields of its `GenerationRequest`.
    """
    request = GenerationRequest(
        f"test-{next(_ids)}",
        prompt,
        sampling,
        spec or SpecDecodeParams(switch_epoch=live.epoch),
        adapter,
        **fields,
    )
    tokens: list[int] = []
    times: list[float] = []
    text, cached, last = "", 0, None
    loop = asyncio.get_running_loop()
    if sampling.structured_output is not None:
        await live.engine.check_constraint(sampling.structured_output)
    async for delta in live.engine.generate(request):
        tokens += delta.token_ids
        times += [loop.time()] * len(delta.token_ids)
        text += delta.text
        cached = max(cached, delta.num_cached_tokens)
        last = delta
    assert last is not None
    assert last.finish_reason is not None
    assert last.spec is not None
    return Result(tuple(tokens), text, last.spec, last.finish_reason, cached, tuple(times))


def add_counts(many: Iterable[Mapping[str, ProposerCounts]]) -> dict[str, ProposerCounts]:
    """Sums mappings of name -> `ProposerCounts`."""
    sums: dict[str, ProposerCounts] = {}
    for counts in many:
        for name, count in counts.items():
            sums[name] = sums.get(name, ProposerCounts()) + count
    return sums


def start_stock(model: str, **arguments: Any) -> Any:
    """vLLM's own engine on its model runner V1, without speculation."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    # The runner that vLLM chooses on a CPU; the engine of the test's process asks for V2.
    fork_engines()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=model,
                enforce_eager=True,
                async_scheduling=False,
                kv_cache_memory_bytes=256 << 20,
                **arguments,
            )
        )


class Stock:
    """Stock vLLM without speculation: the reference for every output."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._known: dict[Prompt, tuple[int, ...]] = {}

    async def greedy(self, prompts: Sequence[Prompt], max_tokens: int) -> list[tuple[int, ...]]:
        """The greedy continuations, each of `max_tokens` tokens; computed once per prompt."""
        wanted = [p for p in set(prompts) if len(self._known.get(p, ())) < max_tokens]
        outputs = await asyncio.gather(*(self._run(p, max_tokens) for p in wanted))
        for prompt, output in zip(wanted, outputs, strict=True):
            self._known[prompt] = tuple(output.outputs[0].token_ids)
        return [self._known[p][:max_tokens] for p in prompts]

    async def check(self, prompt: Prompt, tokens: tuple[int, ...]) -> None:
        """Asserts that `tokens` are the greedy continuation, except for ties."""
        (want,) = await self.greedy([prompt], len(tokens))
        if tokens == want:
            return
        at = next(i for i, (a, b) in enumerate(zip(tokens, want, strict=True)) if a != b)
        output = await self._run(prompt + want[:at], 1, logprobs=2)
        best = sorted((e.logprob for e in output.outputs[0].logprobs[0].values()), reverse=True)
        gap = best[0] - best[1]
        assert gap < TIE, (
            f"token {at} is {tokens[at]}, not {want[at]}; the best two are {gap} apart"
        )

    async def gap(self, prompt: Prompt, tokens: tuple[int, ...]) -> float:
        """The most by which one of `tokens` is less likely than the likeliest in its place.

        In log probability. It tells a tie from a mistake also after the texts have parted.
        """
        rows = await self._prompt_logprobs(prompt, tokens)
        return max(
            max(entry.logprob for entry in row.values()) - row[token].logprob
            for token, row in zip(tokens, rows, strict=True)
        )

    async def logprobs(self, prompt: Prompt, tokens: tuple[int, ...]) -> list[float]:
        """The log probability of each of `tokens` after the prompt and those before it."""
        rows = await self._prompt_logprobs(prompt, tokens)
        return [row[token].logprob for token, row in zip(tokens, rows, strict=True)]

    async def _prompt_logprobs(self, prompt: Prompt, tokens: tuple[int, ...]) -> list[Any]:
        output = await self._run(prompt + tokens, 1, prompt_logprobs=1)
        # An engine of ours may have patched this process.
        pieces = pieces_of(output.prompt_logprobs)
        return [position for piece in pieces for position in piece][len(prompt) :]

    async def _run(self, prompt: Prompt, max_tokens: int, **options: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **options,
        )
        last = None
        inputs = {"prompt_token_ids": list(prompt)}
        async for output in self._llm.generate(inputs, params, f"stock-{next(_ids)}"):
            last = output
        return last
