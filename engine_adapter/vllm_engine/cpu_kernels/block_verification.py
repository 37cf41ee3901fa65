"""Twins of the kernels that verify the drafts of a row together: https://arxiv.org/abs/2403.10444.

The kernels are in vLLM's `v1/worker/gpu/spec_decode/rejection_sampler_utils.py`. For the terms and
the arrays see `draft_stats.py`.
"""

from typing import Any

import numpy as np
import torch

from engine_adapter.vllm_engine.cpu_kernels.compiled import compiled
from engine_adapter.vllm_engine.cpu_kernels.draft_stats import log_probs, log_sums

Array = Any

_ZERO = np.float32(0)


def cumulative_log_p(
    cumulative_log_p: torch.Tensor,
    target_logits: torch.Tensor,
    target_local_max: torch.Tensor,
    target_local_sumexp: torch.Tensor,
    draft_sampled: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_local_max: torch.Tensor,
    draft_local_sumexp: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    temp: torch.Tensor,
    vocab_num_blocks: int,
    HAS_DRAFT_LOGITS: bool,
) -> None:
    """Compares target and proposer up to each draft. `_compute_cumulative_log_p_kernel`.

    Args:
        cumulative_log_p: float32 [L], is written in rows that sample: the logarithm of the ratio of
            both probabilities of the drafts up to this one, at no place more than 0.
        target_logits, draft_logits: see `draft_stats.py`.
        target_local_max, target_local_sumexp, draft_local_max, draft_local_sumexp: of
            `local_logits_stats`.
        draft_sampled, cu_num_logits, idx_mapping: see `draft_stats.py`.
        temp: float32 [M].
        vocab_num_blocks: the number of blocks.
        HAS_DRAFT_LOGITS: whether there are the proposer's logits.
    """
    found = log_probs(
        *(target_logits, target_local_max, target_local_sumexp, draft_sampled, draft_logits),
        *(draft_local_max, draft_local_sumexp, cu_num_logits, idx_mapping, temp),
    )
    ratios = found.target - found.draft
    _cumulate(cumulative_log_p, ratios, draft_sampled, cu_num_logits, idx_mapping, temp)


@compiled
def _cumulate(
    log_p: Array, ratios: Array, drafts: Array, starts: Array, requests: Array, temperatures: Array
) -> None:
    for row in range(len(requests)):
        if temperatures[requests[row]] == 0:
            continue
        total = _ZERO
        for logit in range(starts[row], starts[row + 1] - 1):
            if drafts[logit + 1] >= 0:
                total = min(total + ratios[logit], _ZERO)
            log_p[logit] = total


def local_residual_mass(
    local_residual_mass: torch.Tensor,
    cumulative_log_p: torch.Tensor,
    target_logits: torch.Tensor,
    target_local_max: torch.Tensor,
    target_local_sumexp: torch.Tensor,
    draft_logits: torch.Tensor,
    draft_local_max: torch.Tensor,
    draft_local_sumexp: torch.Tensor,
    draft_sampled: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    temp: torch.Tensor,
    vocab_size: int,
    vocab_num_blocks: int,
    BLOCK_SIZE: int,
    num_speculative_steps: int = 0,
    num_logits: int = 0,
) -> None:
    """What the target finds likelier than the proposer. `_compute_local_residual_mass_kernel`.

    Args:
        local_residual_mass: float32 [L, blocks], is written in rows that sample, from their second
            draft on: the sum of what of the target's probabilities, times the ratio of
            `cumulative_log_p`, is above the proposer's.
        cumulative_log_p: float32 [L].
        target_logits, draft_logits: see `draft_stats.py`.
        target_local_max, target_local_sumexp, draft_local_max, draft_local_sumexp,
            expanded_idx_mapping, expanded_local_pos, temp, vocab_size, BLOCK_SIZE,
            num_speculative_steps, num_logits: see `local_logits_stats`.
        draft_sampled: see `draft_stats.py`.
        vocab_num_blocks: the number of blocks.
    """
    places = expanded_local_pos[:-1]
    verifying = (places > 0) & (expanded_local_pos[1:] > 0) & (draft_sampled[1:] >= 0)
    verifying &= temp[expanded_idx_mapping[:-1]] != 0
    rows = verifying.nonzero()[:, 0]
    if not len(rows):
        return
    requests, steps = expanded_idx_mapping[rows].long(), places[rows].long()
    target_sums = log_sums(target_local_max[rows], target_local_sumexp[rows])
    draft_sums = log_sums(draft_local_max[rows], draft_local_sumexp[rows])
    targets = target_logits[rows, :vocab_size] - target_sums[:, None]
    drafts = draft_logits[requests, steps, :vocab_size].float() / temp[requests][:, None]
    drafts -= draft_sums[:, None]
    ratios = cumulative_log_p[rows - 1].exp()[:, None]
    above = (ratios * targets.exp() - drafts.exp()).clamp_(min=0)
    for block in range(vocab_num_blocks):
        part = above[:, block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]
        local_residual_mass[rows, block] = part.sum(1)
