"""Draft models with another tokenizer under options, constraints and sampling, on a real engine.

Options and constraints are over the target's tokens. So are the distributions of sampled drafts.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from demo import model_path
from engine_adapter.seam.types import SamplingOptions
from tests.engine_adapter.vllm_engine.conftest import TARGET, start
from tests.engine_adapter.vllm_engine.support.generation_trees import Tree
from tests.engine_adapter.vllm_engine.support.live import Live, Prompt
from tests.engine_adapter.vllm_engine.support.other_vocabulary import with_other_ids
from tests.engine_adapter.vllm_engine.test_demo_figures import answers, tokens_per_step
from tests.engine_adapter.vllm_engine.test_draft_limits import LEAST, OPTIONS, jobs, of, share
from tests.engine_adapter.vllm_engine.test_engine_distribution import (
    CONDITIONS,
    SAMPLES,
    check,
)
from tests.engine_adapter.vllm_engine.test_other_vocabulary import MISSING

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.timeout(1200),
    pytest.mark.asyncio(loop_scope="session"),
]

SAMPLED = {"draft_sampling": "probabilistic", "num_speculative_tokens": 3}
MAPPED = {"method": "draft_model", "use_heterogeneous_vocab": True}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def mapping(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """An engine with a copy of the target under other ids, and drafts that lack tokens."""
    root, draft = tmp_path_factory.mktemp("drafts"), str(model_path("draft"))
    same = with_other_ids(TARGET, root / "self")
    partial = with_other_ids(draft, root / "partial", without=MISSING, seed=1)
    permuted = with_other_ids(draft, root / "permuted", seed=2)
    proposers: list[dict[str, Any]] = [
        {"name": "draft", "method": "draft_model", "model": draft},
        {"name": "permuted", **MAPPED, "model": permuted},
        {"name": "same", **MAPPED, "model": same, "num_speculative_tokens": 5},
        {"name": "same-sampled", **MAPPED, "model": same, **SAMPLED},
        {"name": "partial", **MAPPED, "model": partial},
        {"name": "partial-sampled", **MAPPED, "model": partial, **SAMPLED},
        {
            "name": "partial-block",
            **MAPPED,
            "model": partial,
            **SAMPLED,
            "verification": "block",
        },
    ]
    started = await start(proposers, kv_cache_memory_bytes=1 << 30, max_num_seqs=64)
    yield started
    await started.engine.stop()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_options_are_those_of_the_targets_tokens(
    mapping: Live, prompts: list[Prompt], options: dict[str, Any]
) -> None:
    chosen = prompts[:4]
    whole = {"max_tokens": 40, "ignore_eos": True, **options}
    sampling = [SamplingOptions(temperature=0.0, **whole)] * len(chosen)
    plain = await of(mapping, chosen, sampling, "none", 0)
    for name in ("same", "partial"):
        drafted = await of(mapping, chosen, sampling, name, 4)
        assert [result.tokens for result in drafted] == [result.tokens for result in plain]
        accepted, count = share(drafted, name)
        assert count > 50
        assert accepted >= (LEAST if name == "same" else 0.0)


async def test_a_constraint_is_one_of_the_targets_tokens(
    mapping: Live, prompts: list[Prompt]
) -> None:
    chosen = prompts[:8]
    sampling = jobs(chosen, 0.0)
    plain = await of(mapping, chosen, sampling, "none", 0)
    for name in ("same", "partial"):
        drafted = await of(mapping, chosen, sampling, name, 4)
        assert [result.tokens for result in drafted] == [result.tokens for result in plain]
        if name == "same":
            assert share(drafted, name)[0] >= LEAST


async def test_a_seed_gives_the_text_of_plain_decoding(
    mapping: Live, prompts: list[Prompt]
) -> None:
    chosen = prompts[:6]
    sampling = [
        SamplingOptions(temperature=0.9, max_tokens=40, seed=i, ignore_eos=True)
        for i in range(len(chosen))
    ]
    plain = await of(mapping, chosen, sampling, "none", 0)
    for name in ("same-sampled", "partial-sampled", "partial-block"):
        drafted = await of(mapping, chosen, sampling, name, 3)
        assert [result.tokens for result in drafted] == [result.tokens for result in plain]
        assert share(drafted, name)[1] > 50
        if name == "same-sampled":
            assert share(drafted, name)[0] >= LEAST, "draft and target share their noise"


async def test_generations_have_the_targets_distribution(mapping: Live) -> None:
    """1,500 generations with each proposer, twice, each time under another condition.

    Power: that of the test of the same name in `test_engine_distribution`.
    """
    tree, conditions = Tree(), itertools.cycle(CONDITIONS.values())
    names = ("partial", "partial-sampled", "partial-block", "same-sampled")
    for condition in CONDITIONS.values():
        possible = {token for path in tree.joint(condition) for token in path[1:]}
        assert possible & MISSING, "some tokens cannot be drafted"
        assert possible - MISSING
    jobs = (check(mapping, tree, name, next(conditions), SAMPLES) for name in names * 2)
    await asyncio.gather(*jobs)


async def test_missing_tokens_cost_accepted_drafts(mapping: Live) -> None:
    """Prints the figures of docs/lab/drafts.md."""
    steps, rates = {}, {}
    for name in ("draft", "permuted", "partial"):
        results = await answers(mapping, "free", 0.0, name, 4)
        steps[name], rates[name] = tokens_per_step(results), share(results, name)[0]
        print(f"| `{name}` | {steps[name]:.2f} | {rates[name]:.0%} |")
    assert steps["permuted"] == pytest.approx(steps["draft"], rel=0.01)
    assert 1.1 < steps["partial"] < steps["draft"]
