"""Twins of the kernels that decide which drafts of a step are accepted.

The kernels are in vLLM's `v1/worker/gpu/spec_decode`, `rejection_sampler.py` and
`rejection_sampler_utils.py`. For the terms and the arrays see `draft_stats.py`.
"""

from typing import Any

import numpy as np
import torch

from engine_adapter.vllm_engine.cpu_kernels.compiled import compiled, machine_code
from engine_adapter.vllm_engine.cpu_kernels.draft_stats import log_probs

Array = Any

_U = np.uint64
_32, _HALF = _U(0xFFFFFFFF), _U(32)
_KEY_A, _KEY_B = _U(0x9E3779B9), _U(0xBB67AE85)
_ROUND_A, _ROUND_B = _U(0xD2511F53), _U(0xCD9E8D57)
_SCALE = np.float32(4.6566127342e-10)
_ZERO, _ONE = np.float32(0), np.float32(1)


@compiled
def gather_draft_sampled(
    draft_sampled: Array,
    pos: Array,
    input_ids: Array,
    positions: Array,
    logits_indices: Array,
    expanded_idx_mapping: Array,
    expanded_local_pos: Array,
    prefill_len: Array,
    num_logits: int,
) -> None:
    """Finds the token and the position before each logit. `_gather_draft_sampled_kernel`.

    Args:
        draft_sampled: int32 [L], is written; -1 for a draft of a row that has not sampled yet.
        pos: int64 [L], is written.
        input_ids, positions: int32 and int64 [T], the step's tokens.
        logits_indices: int64 [L], the token of each logit.
        expanded_idx_mapping: see `draft_stats.py`.
        expanded_local_pos: int32 [L], 0 for a row's first logit, then 1 and so on.
        prefill_len: int32 [M], the tokens to compute before one can be sampled.
        num_logits: L.
    """
    for logit in range(num_logits):
        token, place = logits_indices[logit], expanded_local_pos[logit]
        pos[logit] = positions[token]
        before_sampling = pos[logit] - place < prefill_len[expanded_idx_mapping[logit]]
        draft_sampled[logit] = -1 if place > 0 and before_sampling else input_ids[token]


@compiled
def flatten_sampled(
    flat_sampled: Array, sampled: Array, num_sampled: Array, cu_num_logits: Array
) -> None:
    """Puts sampled tokens beside the logits that they came from. `_flatten_sampled_kernel`.

    Args:
        flat_sampled: int64 [L], is written where a token was sampled.
        sampled: int64 [R, drafts + 1].
        num_sampled: int32 [R], how many tokens a row has sampled.
        cu_num_logits: see `draft_stats.py`.
    """
    for row in range(len(num_sampled)):
        first = cu_num_logits[row]
        for i in range(num_sampled[row]):
            flat_sampled[first + i] = sampled[row, i]


def rejection(
    sampled: torch.Tensor,
    rejected_steps: torch.Tensor,
    target_rejected_logsumexp: torch.Tensor,
    draft_rejected_logsumexp: torch.Tensor,
    target_logits: torch.Tensor,
    target_local_argmax: torch.Tensor,
    target_local_max: torch.Tensor,
    target_local_sumexp: torch.Tensor,
    draft_sampled: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_local_max: torch.Tensor,
    draft_local_sumexp: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    temp: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    synthetic_conditional_rates: torch.Tensor | None,
    cumulative_log_p: torch.Tensor | None,
    local_residual_mass: torch.Tensor | None,
    vocab_num_blocks: int,
    HAS_DRAFT_LOGITS: bool,
    SYNTHETIC_MODE: bool,
    USE_BLOCK_VERIFICATION: bool,
    fly_entropy: torch.Tensor | None = None,
    fly_entropy_threshold: float = 0.0,
    FLY_WINDOW_SIZE: int = 0,
    *,
    BY_STEP: bool,
) -> None:
    """Accepts the first drafts of each row. `_rejection_kernel`.

    Long because the kernel has these parameters.

    Args:
        sampled: int64 [R, drafts + 1], gets the accepted drafts; of a greedy row also the target's
            token in the place of the first rejected one.
        rejected_steps: int32 [R], is written: how many drafts are accepted.
        target_rejected_logsumexp, draft_rejected_logsumexp: float32 [R], are written: those of the
            logits of the first rejected draft, in rows that sample.
        target_logits: float32 [L, V].
        target_local_argmax, target_local_max, target_local_sumexp: int64 and float32 [L, blocks].
        draft_sampled, cu_num_logits, idx_mapping: see `draft_stats.py`.
        draft_logits: [M, drafts, V or more], the proposer's, if it has any.
        draft_local_max, draft_local_sumexp: float32 [L, blocks], of the proposer's.
        temp, seed: float32 and int64 [M], of the requests; temperature 0 is greedy.
        pos: int64 [L].
        synthetic_conditional_rates: float32 [drafts], how likely each is accepted, in the mode that
            pretends acceptance.
        cumulative_log_p: float32 [L], of verification by block, as `local_residual_mass`.
        local_residual_mass: float32 [L, blocks], with the proposer's logits.
        vocab_num_blocks: the number of blocks.
        HAS_DRAFT_LOGITS, SYNTHETIC_MODE: whether these are there.
        USE_BLOCK_VERIFICATION: whether all drafts are accepted or rejected together, see
            https://arxiv.org/abs/2403.10444, or else one by one, https://arxiv.org/abs/2211.17192.
        fly_entropy, fly_entropy_threshold: of the method `fly`.
        FLY_WINDOW_SIZE: 0, or the window of `fly`; since vLLM 0.33.
        BY_STEP: whether a draft's place is mixed into the seed of a block, as since vLLM 0.33.

    Raises:
        ValueError: `fly` is asked for, which accepts tokens that the target would not sample.
    """
    if FLY_WINDOW_SIZE:
        raise ValueError("rejection_sample_method: 'fly' needs a GPU")
    found = log_probs(
        *(target_logits, target_local_max, target_local_sumexp, draft_sampled, draft_logits),
        *(draft_local_max, draft_local_sumexp, cu_num_logits, idx_mapping, temp),
    )
    block = target_local_max.nan_to_num(nan=-torch.inf).argmax(1, keepdim=True)
    best = target_local_argmax.gather(1, block)[:, 0]
    masses = local_residual_mass.sum(1) if local_residual_mass is not None else None
    _reject(
        *(sampled, rejected_steps, target_rejected_logsumexp, draft_rejected_logsumexp),
        *(best, *found, draft_sampled, cu_num_logits, idx_mapping, temp, seed, pos),
        *(synthetic_conditional_rates, cumulative_log_p, masses, BY_STEP),
    )


@compiled
def _reject(
    sampled: Array,
    accepted: Array,
    rejected_target_sums: Array,
    rejected_draft_sums: Array,
    best: Array,
    target_logs: Array,
    draft_logs: Array,
    target_sums: Array,
    draft_sums: Array,
    drafts: Array,
    starts: Array,
    requests: Array,
    temperatures: Array,
    seeds: Array,
    positions: Array,
    rates: Array,
    log_p: Array,
    masses: Array,
    by_step: bool,
) -> None:
    """Long because one walk over a row's drafts follows any of three rules, and is compiled."""
    for row in range(len(requests)):
        request, first = requests[row], np.int64(starts[row])
        count = np.int64(starts[row + 1]) - first - 1
        seed, greedy = seeds[request], temperatures[request] == 0
        length, last = 0, first - 1
        for i in range(count):
            logit = first + i
            draft = drafts[logit + 1]
            if draft < 0 and not greedy:
                break
            step = np.int64(i) << np.int64(32) if by_step and log_p is not None else np.int64(0)
            number = _uniform(seed ^ step, positions[logit])
            sampled[row, i] = draft
            if log_p is not None and not greedy:
                following = i < count - 1 and drafts[logit + 2] >= 0
                if number <= _threshold(logit, following, log_p, masses, target_logs):
                    length = i + 1  # the drafts before it are accepted with it
                continue
            last = logit
            if rates is not None:
                accept = number < rates[i]
            elif greedy:
                accept = draft == best[logit]
            else:
                accept = target_logs[logit] > np.log(number) + draft_logs[logit]
            if not accept or draft < 0:
                if greedy:
                    sampled[row, i] = best[logit]
                break
            length += 1
        if log_p is not None and length < count:
            last = first + length
        summed = last >= first and not greedy
        accepted[row] = length
        rejected_target_sums[row] = target_sums[last] if summed else _ZERO
        rejected_draft_sums[row] = draft_sums[last] if summed else _ZERO


@machine_code
def _threshold(logit: Any, following: Any, log_p: Any, masses: Any, target_logs: Any) -> Any:
    """Up to which number a block ends with this draft or a later one; is another one following?"""
    ratio = np.exp(log_p[logit])
    if not following:
        return ratio
    if masses is not None:
        mass = masses[logit + 1]
    else:
        mass = ratio * (_ONE - np.exp(target_logs[logit + 1]))
    rest = mass + _ONE - ratio
    return mass / rest if rest > _ZERO else _ONE


@machine_code
def _uniform(seed: Any, offset: Any) -> Any:
    """A float32 in (0, 1), of a seed and an offset, both int64: vLLM's `tl_rand32`.

    Philox 4x32 with ten rounds, https://doi.org/10.1145/2063384.2063405, as Triton's `tl.rand`.
    """
    first_key, second_key = _U(seed) & _32, _U(seed) >> _HALF
    a, b, c, d = _U(offset) & _32, _U(offset) >> _HALF, _U(0), _U(0)
    for _ in range(10):
        from_a, from_c = a * _ROUND_A, c * _ROUND_B
        a = (from_c >> _HALF) ^ b ^ first_key
        c = (from_a >> _HALF) ^ d ^ second_key
        b, d = from_c & _32, from_a & _32
        first_key, second_key = (first_key + _KEY_A) & _32, (second_key + _KEY_B) & _32
    if a >> _U(31):  # negative as an int32
        a ^= _32
    return max(np.float32(a) * _SCALE, _SCALE)
