"""Twin of the kernel that looks at the logits of a step before its drafts are verified.

The kernel is in vLLM's `v1/worker/gpu/spec_decode/rejection_sampler_utils.py`; its results are what
the twins of `rejection.py`, `block_verification.py` and `resampling.py` share. A step has R rows,
which are requests, and L logits of V tokens. `cu_num_logits` int32 [R + 1] says where each row's
logits begin: one for each draft, and the last one, the bonus, for the token after all drafts.
`idx_mapping` int [R] and `expanded_idx_mapping` int [L] have their index among the M requests that
the runner holds; `expanded_local_pos` int32 [L] is 0 at a row's first logit, then 1 and so on.
`draft_sampled` int32 [L] has the token before each logit, so the draft that logit i verifies is at
i + 1; -1 is none, which is never accepted. `target_logits` is float32 [L, V]; `draft_logits` has
those of the proposer, [M, drafts, V or more] of any float type, before the temperature. Arrays
[L, blocks] are about blocks of the vocabulary.
"""

from typing import NamedTuple

import torch


class LogProbs(NamedTuple):
    """Float32 [L] each; what they hold at a bonus, or in a greedy row, means nothing.

    Attributes:
        target, draft: the log probability that target and proposer give the draft which the logit
            verifies; 0 of a proposer without logits.
        target_sums, draft_sums: the logarithm of the sum of exponentials of all logits.
    """

    target: torch.Tensor
    draft: torch.Tensor
    target_sums: torch.Tensor
    draft_sums: torch.Tensor


def local_logits_stats(
    target_local_argmax: torch.Tensor,
    target_local_max: torch.Tensor,
    target_local_sumexp: torch.Tensor,
    draft_local_max: torch.Tensor,
    draft_local_sumexp: torch.Tensor,
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    temp: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
    HAS_DRAFT_LOGITS: bool,
    num_speculative_steps: int = 0,
    num_logits: int = 0,
) -> None:
    """Finds what a rejection needs of each block of logits. `_compute_local_logits_stats_kernel`.

    Args:
        target_local_argmax, target_local_max: int64 and float32 [L, blocks], are written in greedy
            rows: the likeliest of `BLOCK_SIZE` tokens, and its logit.
        target_local_sumexp: float32 [L, blocks]; with the maximum it is written in rows that
            sample: the sum of exponentials of the block, each divided by that of the maximum.
        draft_local_max, draft_local_sumexp: float32 [L, blocks], the same of the proposer's logits
            divided by the temperature.
        target_logits, draft_logits: see the module.
        expanded_idx_mapping, expanded_local_pos: int and int32 [L], each logit's request, and its
            place in its row.
        temp: float32 [M].
        vocab_size: the width of the narrower logits.
        BLOCK_SIZE: tokens of a block.
        HAS_DRAFT_LOGITS: whether there are the proposer's.
        num_speculative_steps: the most drafts of a row; until vLLM 0.32, whose kernel also writes
            the unread arrays of a bonus if its row has fewer.
        num_logits: L, since vLLM 0.33.
    """
    # A draft follows the logit that verifies it.
    verifying = expanded_local_pos[1:].nonzero()[:, 0]
    if not len(verifying):
        return
    temperatures = temp[expanded_idx_mapping[verifying]]
    greedy, sampling = verifying[temperatures == 0], verifying[temperatures != 0]
    if len(greedy):
        blocks = _blocks(target_logits[greedy, :vocab_size], BLOCK_SIZE)
        target_local_max[greedy], indices = blocks.max(2)
        firsts = torch.arange(0, vocab_size, BLOCK_SIZE)
        target_local_argmax[greedy] = indices + firsts
    if len(sampling):
        blocks = _blocks(target_logits[sampling, :vocab_size], BLOCK_SIZE)
        _write_sums(blocks, sampling, target_local_max, target_local_sumexp)
    if len(sampling) and draft_logits is not None:
        requests, steps = expanded_idx_mapping[sampling].long(), expanded_local_pos[sampling].long()
        drafts = draft_logits[requests, steps, :vocab_size].float() / temp[requests][:, None]
        _write_sums(_blocks(drafts, BLOCK_SIZE), sampling, draft_local_max, draft_local_sumexp)


def _blocks(logits: torch.Tensor, size: int) -> torch.Tensor:
    """[rows, V] as [rows, blocks, size], a copy; the last block is filled with minus infinity.

    A vocabulary of less than a block is not filled.
    """
    rows, width = logits.shape
    size = min(size, width)
    blocks = -(-width // size)
    padded = logits.new_full((rows, blocks * size), float("-inf"))
    padded[:, :width] = logits
    return padded.view(rows, blocks, size)


def _write_sums(
    blocks: torch.Tensor, rows: torch.Tensor, maxima: torch.Tensor, sums: torch.Tensor
) -> None:
    """Writes each block's maximum and sum of exponentials, and uses up the blocks."""
    most = blocks.amax(2)
    total = blocks.sub_(most[:, :, None]).exp_().sum(2)
    maxima[rows], sums[rows] = most, torch.where(most > float("-inf"), total, 0)


def log_probs(
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
) -> LogProbs:
    """How likely target and proposer find each draft; the arguments are the kernels'."""
    lengths = cu_num_logits.diff()
    requests = idx_mapping.long().repeat_interleave(lengths)
    tokens = draft_sampled[: len(requests)].roll(-1).long().clamp_(min=0)[:, None]
    target_sums = log_sums(target_local_max, target_local_sumexp)
    target = target_logits.gather(1, tokens)[:, 0] - target_sums
    if draft_logits is None:
        return LogProbs(target, torch.zeros_like(target), target_sums, torch.zeros_like(target))
    firsts = cu_num_logits[:-1].repeat_interleave(lengths)
    steps = (torch.arange(len(requests)) - firsts).clamp_(max=draft_logits.shape[1] - 1)
    tokens = tokens[:, 0].clamp_(max=draft_logits.shape[2] - 1)
    draft_sums = log_sums(draft_local_max, draft_local_sumexp)
    draft = draft_logits[requests, steps, tokens].float() / temp[requests] - draft_sums
    return LogProbs(target, draft, target_sums, draft_sums)


def log_sums(maxima: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """The logarithm of each row's sum of exponentials, float32 [L], from those of its blocks."""
    return (maxima + sums.log()).logsumexp(1)
