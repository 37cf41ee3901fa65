"""The memory of sampled drafts while they are verified, by torch's own account."""

import numpy as np
import pytest
import torch

from engine_adapter.proposers.methods import parse_spec
from engine_adapter.staging import joined
from tests.engine_adapter.vllm_engine.support.peak_memory import peak_memory

pytestmark = pytest.mark.needs_vllm

ROWS, VOCABULARY = 8, 4096


@pytest.mark.parametrize("k", [1, 2, 5, 8])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_what_is_held_in_advance_is_what_verification_takes(rule: str, k: int) -> None:
    from engine_adapter.vllm_engine.worker.verification.layout import VerifyLayout

    from engine_adapter.vllm_engine.worker.verification.rejection import (
        SampledDraft,
        SpeculativeSampling,
        sampling_bytes,
    )

    fields = {"name": "d", "method": "draft_model", "model": "a/b", "num_speculative_tokens": k}
    spec = parse_spec({**fields, "draft_sampling": "probabilistic", "verification": rule})
    q = torch.rand(ROWS * k, VOCABULARY).softmax(-1)
    layout = VerifyLayout([k] * ROWS, q.device)
    drafts = {
        row: SampledDraft(np.zeros(k, np.int64), one, rule == "block")
        for row, one in enumerate(q.split(k))
    }
    logits = torch.randn(ROWS * (k + 1), VOCABULARY)
    with torch.inference_mode(), peak_memory() as peak:
        SpeculativeSampling(drafts, layout.starts_on_cpu, layout.device).apply(logits)
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
