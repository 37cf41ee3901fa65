"""The memory of sampled drafts while they are verified, by torch's own account."""

import numpy as np
import pytest
import torch

from engine_adapter.proposers.methods import parse_spec
from engine_adapter.proposers.staging import joined
from tests.engine_adapter.vllm_engine.support.peak_memory import peak_memory
from tests.engine_adapter.vllm_engine.support.v2_states import rows_of, sampler_of

pytestmark = pytest.mark.needs_vllm

ROWS, VOCABULARY = 8, 4096


@pytest.mark.parametrize("k", [1, 2, 5, 8])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_what_is_held_in_advance_is_what_verification_takes(rule: str, k: int) -> None:
    """Without options nothing else of this size is made: the sampler takes the target's logits."""
    from engine_adapter.vllm_engine.worker.verification.rejection import (
        SampledDraft,
        SpeculativeSampling,
        sampling_bytes,
    )
    from engine_adapter.vllm_engine.worker.verification.rule_sampler import RuleSampler

    fields = {"name": "d", "method": "draft_model", "model": "a/b", "num_speculative_tokens": k}
    spec = parse_spec({**fields, "draft_sampling": "probabilistic", "verification": rule})
    q = torch.rand(ROWS * k, VOCABULARY).softmax(-1)
    drafts = {
        row: SampledDraft(torch.zeros(k, dtype=torch.int64), one, rule == "block")
        for row, one in enumerate(q.split(k))
    }
    sampler = sampler_of(VOCABULARY, [([1], [2], {"temperature": 1.0})] * ROWS, RuleSampler)
    rows = rows_of(sampler, range(ROWS))
    logits = torch.randn(ROWS * (k + 1), VOCABULARY)
    step = (
        torch.from_numpy(rows.repeat(k + 1)),
        torch.from_numpy(rows),
        rows,
        torch.arange(len(logits)),
        torch.zeros(len(logits), dtype=torch.int32),
        torch.arange(k + 1, dtype=torch.int32).repeat(ROWS),
        np.full(ROWS, 3),
    )
    with torch.inference_mode(), peak_memory() as peak:
        starts = np.arange(ROWS) * (k + 1)
        sampler.rule = SpeculativeSampling(drafts, starts, q.device)
        sampler.sample(logits, *step)
    taken = q.nbytes + peak.num_bytes
    held = sampling_bytes([spec], ROWS, VOCABULARY)
    assert 0.98 * taken < held < 1.1 * taken


def test_distributions_that_follow_each_other_are_not_copied() -> None:
    q = torch.rand(10, 16)
    parts = list(q.split([3, 1, 4, 2]))
    with peak_memory() as peak:
        assert torch.equal(joined(parts), q)
        assert torch.equal(joined(parts[1:3]), q[3:8])
    assert peak.num_bytes < q[0].nbytes
    for others in (parts[::-1], [parts[0], parts[2]], [parts[0], torch.rand(2, 16)]):
        assert torch.equal(joined(others), torch.cat(others))
    strided = torch.rand(4, 32)[:, ::2]
    assert torch.equal(joined([strided]), strided)


def test_logits_of_drafts_have_room_and_one_copy_of_at_most_a_gibibyte() -> None:
    from engine_adapter.vllm_engine.worker.verification.rejection import MAX_BYTES, drafted_bytes

    assert drafted_bytes(4, 20, 1000, torch.bfloat16) == 4 * 5 * 1000 * 2 + 4 * 6 * 1000 * 4
    assert drafted_bytes(256, 1280, 250_000, torch.bfloat16) == 256 * 5 * 250_000 * 2 + MAX_BYTES
