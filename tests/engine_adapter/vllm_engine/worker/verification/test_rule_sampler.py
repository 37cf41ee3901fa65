"""The sampler with rules and parts, beside the distribution of its tokens: `test_distribution`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine.worker.verification.exact_match import ExactMatch
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


SIZES = [3, 1, 4, 2, 3]
"""Positions of each row: its drafts, and one more."""

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 3, "logprobs": 2},
    {"repetition_penalty": 1.5, "presence_penalty": 0.5},
    {"temperature": 0.7, "seed": 4, "top_k": 3},
    {},
    {"temperature": 1.0, "seed": 5, "logit_bias": {2: 3.0}},
]


def step_of(sampler: Any) -> SimpleNamespace:
    """vLLM's `InputBatch` of a step of five rows."""
    rows, sizes = rows_of(sampler, range(len(SIZES))), np.array(SIZES)
    starts = np.concatenate([[0], sizes.cumsum()])
    place = np.arange(starts[-1]) - starts[:-1].repeat(sizes)
    lengths = torch.full((len(SIZES),), 20, dtype=torch.int32)
    return SimpleNamespace(
        num_reqs=len(SIZES),
        idx_mapping=torch.from_numpy(rows),
        idx_mapping_np=rows,
        expanded_idx_mapping=torch.from_numpy(rows.repeat(sizes)),
        expanded_local_pos=torch.from_numpy(place.astype(np.int32)),
        cu_num_logits=torch.from_numpy(starts.astype(np.int32)),
        cu_num_logits_np=starts,
        logits_indices=torch.arange(starts[-1]),
        input_ids=torch.from_numpy(place % V).int(),
        positions=torch.from_numpy(place + 1),
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
    )


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"logit_bias": {3: 9.0}}, {"logprobs": 1}], ids=str
)
def test_greedy_rows_have_the_first_of_their_highest_logits_whatever_their_neighbour_asks(
    options: dict[str, Any],
) -> None:
    from engine_adapter.vllm_engine.worker.verification.rule_sampler import RuleSampler

    requests: list[Any] = [([1], [2], {}) for _ in SIZES[:-1]]
    sampler = sampler_of(V, [*requests, ([1], [2], options)], RuleSampler)
    step = step_of(sampler)
    logits = torch.randn(sum(SIZES), V, generator=torch.Generator().manual_seed(1))
    logits[:, 6] = logits[:, 2] = 4.0
    logits[4] = 7.0
    output = sampler(logits.clone(), step)
    assert (output.logprobs_tensors is None) == ("logprobs" not in options)
    assert output.sampled_token_ids.dtype == torch.int64
    assert output.sampled_token_ids[: -SIZES[-1], 0].tolist() == [2, 2, 2, 2, 0, *[2] * 5]
    assert sampler.are_plain(step.idx_mapping_np) == (not options)
    plain = super(RuleSampler, sampler).__call__(logits.clone(), step)
    for name in ("sampled_token_ids", "num_sampled", "num_rejected"):
        assert torch.equal(getattr(output, name), getattr(plain, name)), name


def test_plain_rows_are_asked_for_their_options_once_until_the_live_requests_change() -> None:
    from vllm import SamplingParams

    from engine_adapter.vllm_engine.worker.verification.rule_sampler import RuleSampler

    sampler = sampler_of(V, [([1], [2], {}), ([1], [2], {})], RuleSampler)
    first, second = rows_of(sampler, [0]), rows_of(sampler, [1])
    assert sampler.are_plain(first)
    sampler.get_logprobs_dims = None  # nothing asks it again
    assert sampler.are_plain(second)
    del sampler.get_logprobs_dims
    sampler.add_request(second[0], SamplingParams(temperature=1.0))
    sampler.requests_changed()
    assert not sampler.are_plain(second)
    assert sampler.are_plain(first)
    sampler.add_request(second[0], SamplingParams(temperature=0.0))
    sampler.requests_changed()
    assert sampler.are_plain(np.concatenate([first, second]))


def test_plain_rows_are_verified_as_rows_whose_options_are_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from engine_adapter.vllm_engine.worker.verification.rule_sampler import RuleSampler

    sampler = sampler_of(V, [([1], [2], {}) for _ in SIZES], RuleSampler)
    step = step_of(sampler)
    step.num_draft_tokens_per_req = np.array(SIZES) - 1
    logits = torch.randn(sum(SIZES), V, generator=torch.Generator().manual_seed(1))
    logits[::2, 1] = 9.0  # some drafts are accepted
    verify = ExactMatch(sampler)
    plain = verify(logits.clone(), step)
    monkeypatch.setattr(sampler, "are_plain", lambda rows: False)
    sampled = verify(logits.clone(), step)
    assert sampled.num_sampled.max() > 1
    for name in ("sampled_token_ids", "num_sampled", "num_rejected"):
        assert torch.equal(getattr(plain, name), getattr(sampled, name)), name
    assert plain.logprobs_tensors is None


@pytest.mark.parametrize("most", [1, 4, 7])
def test_a_step_that_is_sampled_in_parts_has_the_same_output(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine_adapter.vllm_engine.worker.verification import rule_sampler

    requests = [([1], [2], options) for options in OPTIONS]
    sampler = sampler_of(V, requests, rule_sampler.RuleSampler)
    step = step_of(sampler)
    logits = torch.randn(sum(SIZES), V, generator=torch.Generator().manual_seed(1))
    whole = sampler(logits.clone(), step)
    monkeypatch.setattr(rule_sampler, "MAX_BYTES", 4 * V * most)
    parts = sampler(logits.clone(), step)
    for name in ("sampled_token_ids", "num_sampled", "num_rejected"):
        assert torch.equal(getattr(parts, name), getattr(whole, name)), name
    for part, of_whole in zip(parts.logprobs_tensors[:3], whole.logprobs_tensors[:3], strict=True):
        assert torch.equal(part, of_whole)
    starts = parts.logprobs_tensors.cu_num_generated_tokens
    assert starts == whole.logprobs_tensors.cu_num_generated_tokens == [0, 3, 4, 8, 10, 13]


def test_a_part_has_the_rules_of_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has one certain draft that the target never emits, or always."""
    from engine_adapter.vllm_engine.worker.verification import rule_sampler

    requests = [([1], [2], {"temperature": 1.0}) for _ in SIZES]
    sampler = sampler_of(V, requests, rule_sampler.RuleSampler)
    step = step_of(sampler)
    first = step.cu_num_logits_np[:-1]
    logits = torch.zeros(sum(SIZES), V)
    logits[first] = -1e9
    logits[first, [0, 1, 2, 3, 4]] = 0.0
    monkeypatch.setattr(rule_sampler, "MAX_BYTES", 4 * V * 5)
    sampler.drafts = {
        row: SampledDraft(torch.tensor([token]), torch.eye(V)[[token]])
        for row, token in ((0, 0), (2, 7), (4, 4))
    }
    tokens = sampler(logits, step).sampled_token_ids.view(-1)
    assert tokens[first].tolist() == [0, 1, 2, 3, 4]


def test_rows_are_not_divided() -> None:
    from engine_adapter.vllm_engine.worker.verification.rule_sampler import row_ranges

    starts = np.array([0, 3, 4, 8, 10, 13])
    assert list(row_ranges(starts, 100)) == [(0, 5)]
    assert list(row_ranges(starts, 4)) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert list(row_ranges(starts, 1)) == [(i, i + 1) for i in range(5)]
