"""Twins of the kernels that sample the token after the accepted drafts of a row.

The kernels are in vLLM's `v1/worker/gpu/spec_decode/rejection_sampler_utils.py`. For the terms and
the arrays see `draft_stats.py`.
"""

from typing import Any

import torch

from engine_adapter.vllm_engine.cpu_kernels.compiled import compiled
from engine_adapter.vllm_engine.cpu_kernels.noise import noised_argmax

Array = Any


def resample(
    resampled_local_argmax: torch.Tensor,
    resampled_local_max: torch.Tensor,
    target_logits: torch.Tensor,
    target_rejected_logsumexp: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_rejected_logsumexp: torch.Tensor,
    rejected_step: torch.Tensor,
    cu_num_logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    draft_sampled: torch.Tensor,
    temp: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    cumulative_log_p: torch.Tensor | None,
    contexts: torch.Tensor | None,
    watermarking: torch.Tensor | None,
    watermarking_skip_mask: torch.Tensor | None,
    watermark_key_0: int,
    watermark_key_1: int,
    vocab_size: int,
    BLOCK_SIZE: int,
    HAS_DRAFT_LOGITS: bool,
    USE_FP64: bool,
    USE_BLOCK_VERIFICATION: bool,
    CONTEXT_WIDTH: int,
    WATERMARK: bool,
    DEDUPLICATE_CONTEXTS: bool,
) -> None:
    """Samples the token after the accepted drafts of each row. `_resample_kernel`.

    After a rejection it is drawn from what the target finds likelier than the proposer, otherwise
    from the target. The noise is that of `gumbel_sample`. Long because the kernel has these
    parameters.

    Args:
        resampled_local_argmax: int64 [R, blocks], is written: the token of each block of
            `BLOCK_SIZE` that wins; not in a greedy row that has rejected a draft.
        resampled_local_max: float32 or float64 [R, blocks], is written: its logit and noise.
        target_logits, draft_logits: see `draft_stats.py`.
        target_rejected_logsumexp, draft_rejected_logsumexp, rejected_step: of `rejection`.
        cu_num_logits, expanded_idx_mapping, draft_sampled: see `draft_stats.py`.
        temp, seed: float32 and int64 [M].
        pos: int64 [L].
        cumulative_log_p: float32 [L], of verification by block.
        contexts, watermarking, watermarking_skip_mask, watermark_key_0, watermark_key_1: of
            watermarks.
        vocab_size: the width of the narrower logits.
        BLOCK_SIZE: tokens of a block.
        HAS_DRAFT_LOGITS: whether there are the proposer's.
        USE_FP64: whether noise and sums have 64 bits.
        USE_BLOCK_VERIFICATION: see `rejection`.
        CONTEXT_WIDTH, DEDUPLICATE_CONTEXTS: of watermarks.
        WATERMARK: whether the text gets one.

    Raises:
        ValueError: a watermark is asked for.
    """
    if WATERMARK:
        raise ValueError("watermarks with speculation need a GPU")
    logits = cu_num_logits[:-1].long() + rejected_step
    bonus = logits == cu_num_logits[1:] - 1
    rows = (bonus | (temp[expanded_idx_mapping[logits]] != 0)).nonzero()[:, 0]
    if not len(rows):
        return
    logits, bonus = logits[rows], bonus[rows]
    requests = expanded_idx_mapping[logits].long()
    residual = target_logits[logits, :vocab_size]  # a copy
    rejected = draft_sampled[(logits + 1).clamp(max=len(draft_sampled) - 1)].long()
    after = (~bonus & (rejected >= 0)).nonzero()[:, 0]
    if draft_logits is None:
        residual[after, rejected[after]] = float("-inf")
    elif len(after):
        at = logits[after]
        targets = residual[after] - target_rejected_logsumexp[rows[after], None]
        if cumulative_log_p is not None:
            accepted = rejected_step[rows[after]] > 0
            targets += torch.where(accepted, cumulative_log_p[at - 1], 0)[:, None]
        steps, divisors = rejected_step[rows[after]].long(), temp[requests[after], None]
        drafts = draft_logits[requests[after], steps, :vocab_size].float() / divisors
        drafts -= draft_rejected_logsumexp[rows[after], None]
        residual[after] = _above(targets, drafts)
    argmax, most = resampled_local_argmax[rows], resampled_local_max[rows]
    noised_argmax(
        *(argmax, most, residual, requests, seed, pos[logits], temp, BLOCK_SIZE, USE_FP64)
    )
    resampled_local_argmax[rows], resampled_local_max[rows] = argmax, most


def _above(targets: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    """The logarithm of exp(targets) - exp(drafts), minus infinity where that is not positive."""
    ratio = (drafts - targets).exp_()
    return torch.where(ratio < 1, targets + torch.log1p(-ratio), float("-inf"))


@compiled
def insert_resampled(
    sampled: Array,
    num_sampled: Array,
    resampled_local_argmax: Array,
    resampled_local_max: Array,
    resample_num_blocks: int,
    cu_num_logits: Array,
    expanded_idx_mapping: Array,
    temp: Array,
) -> None:
    """Adds the token after the accepted drafts. `_insert_resampled_kernel`.

    Args:
        sampled: int64 [R, drafts + 1], gets it; a greedy row has it if a draft was rejected.
        num_sampled: int32 [R], the accepted drafts, is raised by one.
        resampled_local_argmax, resampled_local_max: [R, blocks], of `resample`.
        resample_num_blocks: the number of blocks.
        cu_num_logits, expanded_idx_mapping: see `draft_stats.py`.
        temp: float32 [M].
    """
    for row in range(len(num_sampled)):
        place = num_sampled[row]
        logit = cu_num_logits[row] + place
        num_sampled[row] = place + 1
        is_bonus = logit == cu_num_logits[row + 1] - 1
        if not is_bonus and temp[expanded_idx_mapping[logit]] == 0:
            continue
        best = 0
        for block in range(resample_num_blocks):  # what is not a number never wins
            value, most = resampled_local_max[row, block], resampled_local_max[row, best]
            if value > most or (most != most and value == value):
                best = block
        sampled[row, place] = resampled_local_argmax[row, best]
