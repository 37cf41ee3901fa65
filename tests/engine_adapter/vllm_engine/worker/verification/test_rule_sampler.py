"""The sampler with rules: what it returns beside the tokens. `test_distribution` has the tokens."""

from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine.worker.verification.rejection import (
    SampledDraft,
    SpeculativeSampling,
)
from tests.engine_adapter.vllm_engine.support.v2_states import rows_of, sampler_of

pytestmark = pytest.mark.needs_vllm

V = 8


@pytest.mark.parametrize("options", [{}, {"top_k": 3, "min_p": 0.01}], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_do_not_show_the_rule(
    temperature: float, options: dict[str, Any]
) -> None:
    """They are read from the logits, or from the processed ones, that are left after the rule."""
    from engine_adapter.vllm_engine.worker.verification.rule_sampler import RuleSampler

    sampler = sampler_of(V, [([1], [2], {"temperature": temperature, **options})], RuleSampler)
    (row,) = rows_of(sampler, [0])
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(1))
    certain = torch.eye(V)[[5, 6]]  # two drafts, of which at least the first is rejected
    drafts = {0: SampledDraft(torch.tensor([5, 6]), certain)}
    logits[0, 5] = -1e9
    before = logits.clone()

    def sample() -> tuple[torch.Tensor, torch.Tensor]:
        tokens, processed = sampler.sample(
            logits,
            torch.full((3,), row),
            torch.tensor([row]),
            np.array([row]),
            torch.arange(1, 4),
            torch.tensor([2, 5, 6]),
            torch.arange(3, dtype=torch.int32),
            np.array([4]),
        )
        return tokens, processed.clone()

    _, plain = sample()
    sampler.rule = SpeculativeSampling(drafts, np.array([0]), logits.device)
    tokens, processed = sample()
    assert torch.equal(processed, plain)
    assert torch.equal(logits, before)
    assert tokens[0] != 5
