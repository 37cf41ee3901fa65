"""Every proposer in one engine, another one for each row in each step, on one rank and on two.

Random plans have fallbacks and shadows, and rows sit out steps at random. In a second run rows of
every policy, of random plans and of pinned proposers share the batches, at temperature 0 and under
a seed.

Greedy output is stock vLLM's under preemption, chunked prefill, prefix hits and aborts, with every
proposer. All drafts of the target for itself are accepted, also after steps of other proposers.

A fault that shows in one step of a hundred is missed by 100 steps with a probability of 37 %, if
steps are independent. `make prove` runs 10,000 steps, and 2,000 on two ranks; in `make test`
`worker/drafting/test_tensor_parallel.py` compares texts of two ranks.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from engine_adapter.seam.counts import ProposerCounts, StepReport
from engine_adapter.seam.types import NONE, GenerationRequest, SamplingOptions
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.conftest import (
    PROPOSERS,
    TARGET,
    planning_at_random,
    start,
)
from tests.engine_adapter.vllm_engine.support.live import (
    RANDOM,
    Live,
    Prompt,
    Result,
    Stock,
    generate,
    greedy,
    pinned,
)
from tests.engine_adapter.vllm_engine.test_structured_output import SCHEMAS, constrained, of_schema
from tests.engine_adapter.vllm_engine.worker.drafting.test_tensor_parallel import ENVIRONMENT

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(3600),
]

ON_TWO_RANKS: list[dict[str, Any]] = [
    {
        "name": "whole",
        "method": "draft_model",
        "model": TARGET,
        "num_speculative_tokens": 4,
        "draft_tensor_parallel_size": 1,
    }
]
LENGTHS = (24, 48, 96)

EAGER: dict[str, Any] = {"min_gain": 0.0, "guard_limit": 1.0, "probe_share": 0.2}
RANKED: dict[str, Any] = {"min_acceptance": 0.0, "probe_share": 0.2}
PARAMETERS: dict[str, dict[str, Any]] = {
    "auto": EAGER,
    "per_request": EAGER,
    "quality_first": RANKED,
    "latency_first": RANKED,
    "load": {
        "light": {"proposer": "draft", "max_running": 5},
        "heavy": {"proposer": "cascade", "max_running": 9},
        "dwell_steps": 2,
    },
}
"""Policy -> parameters with which it drafts wherever it can."""

METHODS = {RANDOM: 8, **dict.fromkeys(PARAMETERS, 8), "none": 0, "self": 5, "ngram": 5, "eagle": 4}
"""What rows of one batch may have, each with its k."""

SEEDED: dict[str, Any] = {"temperature": 0.8, "ignore_eos": True}


@asynccontextmanager
async def random_plans(
    proposers: list[dict[str, Any]], *, early: bool = False, **options: Any
) -> AsyncIterator[Live]:
    """An engine with little KV that plans at random, and by policies that always draft.

    Args:
        early: see `planning_at_random`.
    """
    with planning_at_random(early=early):
        started = await start(
            proposers,
            num_gpu_blocks_override=22,
            max_num_batched_tokens=320,
            max_num_seqs=16,
            **options,
        )
    for name, parameters in PARAMETERS.items():
        await started.engine.set_policy(name, parameters)
    yield started
    await started.engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def one_rank() -> AsyncIterator[Live]:
    """Every method."""
    async with random_plans(PROPOSERS) as live:
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two_ranks() -> AsyncIterator[Live]:
    """The same, and a draft model that is whole on each rank."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        proposers = [*PROPOSERS, *ON_TWO_RANKS]
        async with random_plans(proposers, tensor_parallel_size=2) as live:
            yield live


@pytest.mark.parametrize("steps", proved_beyond([100], [100, 10_000]))
async def test_random_steps_on_one_rank(
    one_rank: Live, stock: Stock, prompts: list[Prompt], steps: int
) -> None:
    await fuzz(one_rank, stock, prompts, steps=steps)


@pytest.mark.prove
async def test_on_two_ranks_drafts_know_what_their_requests_allow(
    two_ranks: Live, prompts: list[Prompt]
) -> None:
    """Each rank has matchers of its own; ranks that drafted differently would spoil their KV."""
    constraints = [constrained(of_schema(schema)) for schema, _ in SCHEMAS]
    options = [*constraints, greedy(40, logit_bias=dict.fromkeys(range(100, 500), -4.0))]

    async def of(name: str, k: int) -> list[Result]:
        pairs = zip(prompts, options, strict=False)
        return await asyncio.gather(
            *(generate(two_ranks, prompt, one, pinned(name, k)) for prompt, one in pairs)
        )

    plain = [result.tokens for result in await of("none", 0)]
    for name in ("self", "whole", "forced-first"):
        drafted = await of(name, 4)
        assert [result.tokens for result in drafted] == plain
        counts = [result.counts(name) for result in drafted]
        assert sum(c.accepted for c in counts) >= 0.99 * sum(c.drafted for c in counts) > 0


@pytest.mark.prove
async def test_two_thousand_steps_on_two_ranks(
    two_ranks: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    await fuzz(two_ranks, stock, prompts, steps=2_000)


@pytest.mark.prove
async def test_five_thousand_steps_under_policies(
    one_rank: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    await fuzz_policies(one_rank, stock, prompts, steps=5_000)


@pytest.mark.prove
async def test_a_thousand_steps_under_policies_on_two_ranks(
    two_ranks: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    await fuzz_policies(two_ranks, stock, prompts, steps=1_000)


async def fuzz_policies(
    live: Live, stock: Stock, prompts: list[Prompt], *, steps: int, clients: int = 12
) -> None:
    """Rows under every policy beside pinned ones, greedy and seeded, several at a time."""
    rng = random.Random(steps)
    seeded = [(i, SamplingOptions(seed=i, max_tokens=max(LENGTHS), **SEEDED)) for i in range(6)]
    plain = await asyncio.gather(
        *(generate(live, prompts[i], sampled, pinned("none", 0)) for i, sampled in seeded)
    )
    began = len(live.recorder.steps)
    done: list[tuple[int, bool, Result]] = []
    methods = [pinned(*method) for method in METHODS.items()]

    async def serve(client: int) -> None:
        # In turn, so that each policy has rows in a short run too.
        for spec in itertools.islice(itertools.cycle(methods), client, None):
            if len(live.recorder.steps) - began >= steps:
                return
            length, sampled = rng.choice(LENGTHS), rng.random() < 0.5
            i = rng.randrange(len(seeded) if sampled else len(prompts))
            options = replace(seeded[i][1], max_tokens=length) if sampled else greedy(length)
            done.append((i, sampled, await generate(live, prompts[i], options, spec)))

    await asyncio.gather(*map(serve, range(clients)))

    await stock.greedy(prompts, max(LENGTHS))
    for i, sampled, result in done:
        if sampled:
            assert result.tokens == plain[i].tokens[: len(result.tokens)]
        else:
            await stock.check(prompts[i], result.tokens)
    drafted = decided(live.recorder.steps[began:])
    for name in PARAMETERS:
        assert drafted[name] > steps / 20, drafted
    assert live.engine.evidence["fallbacks"] > 0
    assert live.engine.evidence["outcomes"] > 0
    assert live.engine.evidence["cuts"] > 0
    assert live.engine.evidence["set_aside"] > steps / 20
    assert {info.state for info in await live.engine.proposers()} == {"loaded"}


def decided(steps: Sequence[StepReport]) -> Counter[str]:
    """Policy -> rows for which it planned drafts."""
    counts: Counter[str] = Counter()
    for step in steps:
        for name, chosen in (step.policy.decisions if step.policy else {}).items():
            counts[name] += sum(count for proposer, count in chosen.items() if proposer != NONE)
    return counts


async def fuzz(
    live: Live, stock: Stock, prompts: list[Prompt], *, steps: int, share: float = 0.05
) -> None:
    """Random prompts and lengths, twelve at a time, a tenth of them abandoned.

    Args:
        share: each proposer drafts more tokens than this for each step.
    """
    rng = random.Random(steps)
    began = len(live.recorder.steps)
    drafted = pinned(RANDOM, METHODS[RANDOM])
    done: list[tuple[Prompt, Result]] = []

    async def serve(worker: int) -> None:
        for i in range(steps):
            if len(live.recorder.steps) - began >= steps:
                return
            prompt, length = rng.choice(prompts), rng.choice(LENGTHS)
            if rng.random() < 0.1:
                await abandon(f"abandoned-{steps}-{worker}-{i}", prompt)
            else:
                done.append((prompt, await generate(live, prompt, greedy(length), drafted)))

    async def abandon(request_id: str, prompt: Prompt) -> None:
        stream = live.engine.generate(GenerationRequest(request_id, prompt, greedy(96), drafted))
        async for _ in stream:
            break
        await stream.aclose()

    await asyncio.gather(*(serve(worker) for worker in range(12)))

    await stock.greedy(prompts, max(LENGTHS))
    for prompt, result in done:
        await stock.check(prompt, result.tokens)
    totals = live.recorder.totals(began)
    infos = await live.engine.proposers()
    for info in infos:
        counts = totals.get(info.name, ProposerCounts())
        if info.model == TARGET:
            assert counts.accepted == counts.drafted > 2 * share * steps
        elif info.name not in ("prediction", "grammar"):  # of which no request has what they need
            assert counts.drafted > share * steps, info.name
    assert {info.state for info in infos} == {"loaded"}
    assert live.metric("vllm:num_preemptions_total") > 0
    assert live.metric("vllm:prefix_cache_hits_total") > 0
