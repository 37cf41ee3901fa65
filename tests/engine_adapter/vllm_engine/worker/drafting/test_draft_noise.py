"""The noise of sampled drafts."""

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine.worker.drafting.draft_noise import DraftNoise
from tests.engine_adapter.vllm_engine.support.exact import ALPHA, Sampling, distribution, p_value
from tests.engine_adapter.vllm_engine.support.v2_states import rows_of, sampler_of

pytestmark = pytest.mark.needs_vllm

V = 8
SEEDS = [3, -5, 2**62]
LENGTHS = [4, 9, 30]


def test_a_seeded_row_samples_with_the_noise_of_the_target() -> None:
    """So the target as its own draft model emits its drafts, at any temperature."""
    requests = [
        (range(length), [], {"temperature": 0.8, "seed": seed})
        for seed, length in zip(SEEDS, LENGTHS, strict=True)
    ]
    sampler = sampler_of(V, requests)
    rows = torch.from_numpy(rows_of(sampler, range(3)))
    agreed = 0
    for depth in range(20):
        logits = torch.randn(3, V, generator=torch.Generator().manual_seed(depth))
        places = np.array(LENGTHS) + depth
        target, _ = sampler.sample(
            logits,
            rows,
            rows,
            rows.numpy(),
            torch.from_numpy(places - 1),
            torch.zeros(3, dtype=torch.int32),
            torch.zeros(3, dtype=torch.int32),
            places,
        )
        drafts = DraftNoise(sampler).sample(logits / 0.8, SEEDS, places)
        assert drafts.tolist() == target.tolist()
        other = DraftNoise(sampler).sample(logits / 0.8, SEEDS, places + 1)
        agreed += int((other == target).sum())
    assert agreed < 50


def test_a_row_without_a_seed_samples_with_new_noise_beside_one_with_a_seed() -> None:
    torch.manual_seed(3)
    count = 75_000
    raw = np.random.default_rng(5).normal(0, 1.5, V)
    logits = torch.from_numpy(raw).float().expand(count, V)
    noise = DraftNoise(sampler_of(V, []))
    exact = distribution(raw, Sampling())
    places = np.full(count, 7)
    for seeds in ([None] * count, [None, 1] * (count // 2)):
        drawn = noise.sample(logits, seeds, places)
        own = drawn[:: 1 if seeds[1] is None else 2]
        assert p_value(np.bincount(own, minlength=V), exact) > ALPHA
        assert p_value(np.bincount(own, minlength=V), distribution(raw, Sampling(0.85))) < ALPHA
    assert len(set(drawn[1::2].tolist())) == 1


def test_a_token_that_is_not_possible_is_never_sampled() -> None:
    logits = torch.tensor([0.0, float("-inf"), 1.0]).expand(5_000, 3)
    tokens = DraftNoise(sampler_of(3, [])).sample(logits, [None] * 5_000, np.ones(5_000, int))
    assert set(tokens.tolist()) == {0, 2}
