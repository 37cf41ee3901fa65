"""Short generations through the whole engine have the target's exact distribution.

Each has four tokens: the first is never drafted; the others are accepted drafts, replacements of
rejected drafts, and bonus tokens. The expectation comes from the target's logits as transformers
computes them in float32, without vLLM. Few tokens are possible at each position, so that there are
few cells.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from demo import model_path
from engine_adapter.seam.types import (
    NONE,
    ConstraintKind,
    SamplingOptions,
    SpecDecodeParams,
    SpecMethod,
    StructuredOutput,
)
from tests.engine_adapter.vllm_engine.conftest import planning_at_random, start
from tests.engine_adapter.vllm_engine.support.exact import (
    ALPHA,
    Sampling,
    distribution,
    p_value,
    power,
)
from tests.engine_adapter.vllm_engine.support.generation_trees import (
    LENGTH,
    PATTERN,
    ConstrainedTree,
    Tree,
    as_arrays,
    cheated,
)
from tests.engine_adapter.vllm_engine.support.live import CHEAT, RANDOM, Live, Prompt, generate

pytestmark = pytest.mark.engine
on_the_engines_loop = pytest.mark.asyncio(loop_scope="session")

SAMPLES = 1_500
MANY = 6_000

LEAST_GAP = 1e-3
"""The least distance of a candidate from the limits of the sampling parameters."""

_DRAFT = {"method": "draft_model", "model": str(model_path("draft"))}
_SAMPLED = {"draft_sampling": "probabilistic", "num_speculative_tokens": 3}
_SURE = {"min_confidence": 0.25}
"""Under a repetition penalty few tokens are as likely as more than this."""
_ONE = {"num_speculative_tokens": 1}
"""Fewer than the generations have room for, so that a lookup can continue them."""
_EAGLE = {"method": "eagle", "model": str(model_path("eagle"))}
_MEDUSA = {"model": str(model_path("medusa"))}
_MLP = {"model": str(model_path("mlp-speculator"))}
PROPOSERS: list[dict[str, Any]] = [
    {"name": "ngram", "prompt_lookup_min": 1},
    {"name": "suffix"},
    {"name": "draft", **_DRAFT},
    {"name": "draft-sampled", **_DRAFT, **_SAMPLED},
    {"name": "draft-block", **_DRAFT, **_SAMPLED, "verification": "block"},
    {"name": "draft-sure", **_DRAFT, **_SAMPLED, "verification": "block", **_SURE},
    {"name": "medusa", **_MEDUSA},
    {"name": "medusa-sampled", "method": "medusa", **_MEDUSA, **_SAMPLED, "verification": "block"},
    {"name": "mlp", "method": "mlp_speculator", **_MLP},
    {"name": "mlp-sampled", "method": "mlp_speculator", **_MLP, **_SAMPLED},
    {"name": "eagle", **_EAGLE},
    {"name": "eagle-sampled", **_EAGLE, **_SAMPLED},
    {"name": "eagle-sure", **_EAGLE, **_SAMPLED, **_SURE},
    {"name": "eagle3", "model": str(model_path("eagle3"))},
    {"name": "cascade", "members": ["ngram", "draft-sampled"]},
    {"name": "draft-one", **_DRAFT, **_SAMPLED, **_ONE},
    {"name": "chain", "members": ["draft-one", "ngram"]},
    {"name": "draft-block-one", **_DRAFT, **_SAMPLED, **_ONE, "verification": "block"},
    {"name": "chain-block", "members": ["draft-block-one", "ngram"], "method": "chain"},
    {"name": "prediction"},
]
NAMES = [fields["name"] for fields in PROPOSERS]
FEW = ("medusa-sampled", "chain")
"""A head with the block rule, and a model with a KV cache and the rule for single tokens, whose
sampled drafts are continued by a lookup, or not, as their tokens have it. Drafts without
probabilities are taken where they are the target's own sample: under a seed, `test_sampling`
compares their texts."""

FOR_CONSTRAINTS: list[dict[str, Any]] = [
    {"name": "grammar"},
    {"name": "forced-first", "method": "cascade", "members": ["grammar", "draft-sampled"]},
]
CONSTRAINED = ("draft-sampled", "draft-block", "eagle-sampled", "mlp-sampled", "forced-first")

POLICIES: dict[str, dict[str, Any]] = {
    "auto": {"min_gain": 0.0, "guard_limit": 1.0, "probe_share": 0.2},
    "load": {
        "light": {"proposer": "draft-sampled", "max_running": 24},
        "heavy": {"proposer": "cascade", "max_running": 48},
        "extreme": {"proposer": "eagle-sampled"},
        "dwell_steps": 2,
    },
}
"""Policy -> parameters with which it drafts wherever it can."""

CHOOSING = (*POLICIES, RANDOM)
"""Methods that choose among the proposers; random plans have fallbacks and shadows of all kinds."""

CONDITIONS = {
    "temperature 0.7": Sampling(temperature=0.7, top_k=2),
    "temperature 1.0": Sampling(top_k=2),
    "top-k": Sampling(top_k=3),
    "top-p": Sampling(top_k=4, top_p=0.8),
    "min-p": Sampling(top_k=4, min_p=0.2),
    "logit_bias": Sampling(top_k=2, logit_bias={1385: -1.0, 332: 1.0}),
    # With a higher penalty no token would come twice, and the n-gram proposer would never draft.
    "repetition penalty": Sampling(top_k=3, repetition_penalty=1.2),
}


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def crowd() -> AsyncIterator[Live]:
    """An engine with every proposer, some of them in several variants, and with the control."""
    cheat = {"name": CHEAT, **_DRAFT, **_SAMPLED}
    with planning_at_random(cheats=True):
        started = await start(
            [*PROPOSERS, *FOR_CONSTRAINTS, cheat], kv_cache_memory_bytes=1 << 30, max_num_seqs=64
        )
    for name, parameters in POLICIES.items():
        await started.engine.set_policy(name, parameters)
    yield started
    await started.engine.stop()


async def generations(
    live: Live,
    tree: Tree,
    name: str,
    sampling: Sampling,
    samples: int,
    constraint: StructuredOutput | None = None,
) -> tuple[Counter[Prompt], int]:
    """The count of each generation, and the number of draft tokens verified for all."""
    options = SamplingOptions(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        max_tokens=LENGTH,
        ignore_eos=True,
        structured_output=constraint,
    )
    predicted = max(tree.joint(sampling).items(), key=lambda item: item[1])[0]
    spec = SpecDecodeParams(SpecMethod(name, 3), pinned=True, prediction=predicted)
    results = await asyncio.gather(
        *(generate(live, tree.prompt, options, spec) for _ in range(samples))
    )
    drafted = sum(counts.drafted for r in results for counts in r.spec.by_proposer.values())
    return Counter(result.tokens for result in results), drafted


async def check(live: Live, tree: Tree, name: str, sampling: Sampling, samples: int) -> None:
    """Asserts that drafted generations have the target's distribution."""
    seen, drafted = await generations(live, tree, name, sampling, samples)
    assert drafted > samples // 10, name
    assert p_value(*as_arrays(tree.joint(sampling), seen)) > ALPHA, name


@on_the_engines_loop
@pytest.mark.timeout(1200)
async def test_generations_have_the_targets_distribution(crowd: Live, tree: Tree) -> None:
    """Two proposers at once, each under another condition, 1,500 generations each.

    Power: if tokens 2 to 4 came from a temperature of 1.6 instead of 1.0, at least 99 of 100 such
    tests with 16 cells would fail (`test_the_stated_power`).
    """
    conditions = itertools.cycle(CONDITIONS.values())
    await asyncio.gather(*(check(crowd, tree, name, next(conditions), SAMPLES) for name in FEW))


@on_the_engines_loop
async def test_a_lookup_continues_some_sampled_drafts_and_some_not(crowd: Live, tree: Tree) -> None:
    """So the chain's generations above have drafts of both lengths, as the sampled tokens have it.

    The model's draft of one token is accepted at random, and so is the lookup's after it.
    """
    options = SamplingOptions(temperature=1.0, top_k=4, max_tokens=LENGTH, ignore_eos=True)
    spec = SpecDecodeParams(SpecMethod("chain", 3), pinned=True)
    results = await asyncio.gather(
        *(generate(crowd, tree.prompt, options, spec) for _ in range(200))
    )
    counts = [result.counts("chain") for result in results]
    # A generation of 4 tokens has at most 3 drafts of the model, each of one token.
    assert any(count.drafted > count.drafts for count in counts)
    assert any(count.drafted == count.drafts for count in counts)


def test_the_gate_of_the_draft_model_ends_some_drafts(tree: Tree) -> None:
    draft = Tree(_DRAFT["model"])
    everything = Sampling(top_k=0)
    first = tree.next((), CONDITIONS["top-k"])
    sure = [max(draft.next((token,), everything).values()) for token in first]
    assert min(sure) < _SURE["min_confidence"] < max(sure)


@pytest.mark.prove
@on_the_engines_loop
@pytest.mark.timeout(1200)
async def test_generations_under_a_constraint_have_the_targets_distribution(crowd: Live) -> None:
    """Sampled drafts know the constraint, so each comes from a distribution that it has changed.

    Power: as above, since there are about as many generations.
    """
    tree, sampling = ConstrainedTree(), Sampling(top_k=3)
    constraint = StructuredOutput(ConstraintKind.REGEX, PATTERN)

    async def run(name: str) -> None:
        seen, drafted = await generations(crowd, tree, name, sampling, SAMPLES, constraint)
        assert drafted > SAMPLES // 10, name
        assert p_value(*as_arrays(tree.joint(sampling), seen)) > ALPHA, name

    await asyncio.gather(*map(run, CONSTRAINED))


@pytest.mark.prove
@on_the_engines_loop
@pytest.mark.parametrize("condition", CONDITIONS)
async def test_generations_have_the_targets_distribution_at_length(
    crowd: Live, tree: Tree, condition: str
) -> None:
    """Every proposer under every condition, 6,000 generations each.

    Power: the same as above for a temperature of 4/3.
    """
    await asyncio.gather(*(check(crowd, tree, name, CONDITIONS[condition], MANY) for name in NAMES))


@pytest.mark.prove
@on_the_engines_loop
@pytest.mark.timeout(1200)
async def test_generations_under_policies_have_the_targets_distribution(
    crowd: Live, tree: Tree
) -> None:
    """Policies and random plans, each under another condition, 1,500 generations each.

    The proposers of a row change from step to step, lookups fall back to sampled drafts, and
    sampled drafts are made in the shadow of others. Power: as above.
    """
    began = len(crowd.recorder.steps)
    conditions = itertools.cycle(CONDITIONS.values())
    await asyncio.gather(
        *(check(crowd, tree, name, next(conditions), SAMPLES) for name in CHOOSING)
    )
    totals = crowd.recorder.totals(began)
    used = {name for name, counts in totals.items() if counts.drafted and name != NONE}
    assert used >= {"draft-sampled", "draft-block", "eagle-sampled", "ngram", "cascade", "chain"}
    assert CHEAT not in used
    assert crowd.engine.evidence["fallbacks"] > 0


@pytest.mark.prove
@on_the_engines_loop
@pytest.mark.parametrize("condition", CONDITIONS)
async def test_generations_under_policies_have_the_targets_distribution_at_length(
    crowd: Live, tree: Tree, condition: str
) -> None:
    """The same under every condition, 6,000 generations each. Power: as above for 6,000."""
    await asyncio.gather(
        *(check(crowd, tree, name, CONDITIONS[condition], MANY) for name in CHOOSING)
    )


@pytest.mark.prove
@on_the_engines_loop
@pytest.mark.timeout(1200)
async def test_control_a_length_chosen_by_the_sampled_draft_is_detected(
    crowd: Live, tree: Tree
) -> None:
    """See `cheating`.

    Power: at least 99 of 100 such tests detect it (`test_the_stated_power_of_the_control`). What
    is seen is what such a choice must give, so nothing else fails the test.
    """
    sampling = CONDITIONS["temperature 1.0"]
    seen, drafted = await generations(crowd, tree, CHEAT, sampling, SAMPLES)
    assert drafted > SAMPLES // 10
    assert p_value(*as_arrays(tree.joint(sampling), seen)) < ALPHA
    assert p_value(*as_arrays(cheated(tree, Tree(_DRAFT["model"]), sampling), seen)) > ALPHA


def test_the_stated_power_of_the_control(tree: Tree) -> None:
    sampling = CONDITIONS["temperature 1.0"]
    right, wrong = tree.joint(sampling), cheated(tree, Tree(_DRAFT["model"]), sampling)
    assert set(wrong) == set(right)
    assert sum(wrong.values()) == pytest.approx(1.0)
    expected = np.array(list(right.values()))
    alternative = np.array([wrong[cell] for cell in right])
    assert power(expected, alternative, SAMPLES) >= 0.99


def test_the_stated_power(tree: Tree) -> None:
    right = tree.joint(CONDITIONS["temperature 1.0"])
    assert len(right) == 16
    expected = np.array(list(right.values()))
    for temperature, samples in ((1.6, SAMPLES), (4 / 3, MANY)):
        hotter = replace(CONDITIONS["temperature 1.0"], temperature=temperature)
        wrong = tree.joint(CONDITIONS["temperature 1.0"], later=hotter)
        assert power(expected, np.array([wrong[cell] for cell in right]), samples) >= 0.99
    assert power(expected, expected, SAMPLES) == 0.0


@pytest.mark.parametrize("condition", CONDITIONS)
def test_rounding_decides_no_candidate(tree: Tree, condition: str) -> None:
    """Otherwise float32 sums in another order could make an impossible generation possible."""
    sampling = CONDITIONS[condition]
    nudged: dict[str, Any] = {
        "top_p": sampling.top_p + LEAST_GAP if sampling.top_p < 1 else 1.0,
        "min_p": sampling.min_p - LEAST_GAP if sampling.min_p else 0.0,
    }
    assert set(tree.joint(sampling)) == set(tree.joint(replace(sampling, **nudged)))
    for path in {cell[:n] for cell in tree.joint(sampling) for n in range(LENGTH)}:
        free = replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
        p = np.sort(distribution(tree._logits[path], free, tree.prompt + path))[::-1]
        assert np.log(p[sampling.top_k - 1] / p[sampling.top_k]) > LEAST_GAP
