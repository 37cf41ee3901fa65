"""Ranks of log probabilities, counted without a compiler."""

import time

import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.logprob_ranks import count_not_below, patch_logprob_ranks

pytestmark = pytest.mark.needs_vllm


def test_vllms_sampler_ranks_tokens_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat.sampler, "batched_count_greater_than", None)
    patch_logprob_ranks()
    assert compat.sampler.batched_count_greater_than is count_not_below
    torch.manual_seed(0)  # equal log probabilities have no order
    for rows in (1, 2, 7):
        logprobs = torch.randn(rows, 50).log_softmax(-1)
        chosen = torch.randint(50, (rows,))
        begun = time.process_time()
        found = compat.sampler.Sampler.gather_logprobs(logprobs, 3, chosen)
        # The compiler takes seconds.
        assert time.process_time() - begun < 1
        order = logprobs.argsort(-1, descending=True).tolist()
        ranks = [line.index(token) + 1 for line, token in zip(order, chosen.tolist(), strict=True)]
        assert found.selected_token_ranks.tolist() == ranks
