"""Sampled generations of a target in bfloat16 have the target's distribution.

The expectation is that of transformers in float32, from the same weights. The rounding of bfloat16
moves probabilities by some percent, which is less than the test sees with its number of samples.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio

from tests.engine_adapter.vllm_engine.conftest import start
from tests.engine_adapter.vllm_engine.support.exact import Sampling, power
from tests.engine_adapter.vllm_engine.support.generation_trees import Tree
from tests.engine_adapter.vllm_engine.support.live import Live
from tests.engine_adapter.vllm_engine.test_engine_distribution import PROPOSERS, SAMPLES, check

pytestmark = [pytest.mark.engine, pytest.mark.prove]
on_the_engines_loop = pytest.mark.asyncio(loop_scope="session")

NAMES = ("draft-sampled", "draft-block", "medusa-sampled", "eagle-sampled", "prediction")
CANDIDATES, BIAS = 3, 60.0
"""Some tokens have a bias so large that rounding never decides which tokens are possible."""


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree()


@pytest.fixture(scope="module")
def sampling(tree: Tree) -> Sampling:
    """Leaves the likeliest tokens after the prompt, at every position."""
    likeliest = tree.next((), Sampling(top_k=CANDIDATES))
    return Sampling(top_k=CANDIDATES, logit_bias=dict.fromkeys(likeliest, BIAS))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def narrow() -> AsyncIterator[Live]:
    """An engine in bfloat16."""
    some = [fields for fields in PROPOSERS if fields["name"] in NAMES]
    started = await start(some, dtype="bfloat16", kv_cache_memory_bytes=512 << 20, max_num_seqs=64)
    yield started
    await started.engine.stop()


@on_the_engines_loop
async def test_generations_have_the_targets_distribution(
    narrow: Live, tree: Tree, sampling: Sampling
) -> None:
    """Power: a temperature of 1.6 from the second token on fails 99 of 100 such tests."""
    await asyncio.gather(*(check(narrow, tree, name, sampling, SAMPLES) for name in NAMES))


def test_the_stated_power(tree: Tree, sampling: Sampling) -> None:
    right = tree.joint(sampling)
    wrong = tree.joint(sampling, later=replace(sampling, temperature=1.6))
    assert len(right) == CANDIDATES**4
    expected = np.array(list(right.values()))
    assert power(expected, np.array([wrong[cell] for cell in right]), SAMPLES) >= 0.99
