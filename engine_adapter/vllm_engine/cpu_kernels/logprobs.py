"""Twins of the kernels of log probabilities, of vLLM's `v1/worker/gpu/sample/logprob.py`.

There are L rows of logits, [L, vocabulary] of any float type, each with a sampled token.
"""

from typing import Any

import torch

from engine_adapter.vllm_engine.cpu_kernels.compiled import compiled

Array = Any


def topk_log_softmax(
    output: torch.Tensor,
    logits: torch.Tensor,
    topk_ids: torch.Tensor,
    topk: int,
    vocab_size: int,
) -> None:
    """The log probabilities of some tokens of each row. `_topk_log_softmax_kernel`.

    Args:
        output: float32 [L, `topk`], is written.
        logits: see the module.
        topk_ids: int64 [L, `topk`], the tokens.
        topk: their number.
        vocab_size: the width of the logits.
    """
    logits_f32 = logits.float()
    output.copy_(logits_f32.gather(1, topk_ids) - logits_f32.logsumexp(1, keepdim=True))


def ranks(
    output: torch.Tensor, logits: torch.Tensor, token_ids: torch.Tensor, vocab_size: int
) -> None:
    """How many tokens of each row are at least as likely as its own. `_ranks_kernel`.

    Args:
        output: int64 [L], is written: 1 for the likeliest.
        logits: see the module.
        token_ids: int [L], the sampled tokens.
        vocab_size: the width of the logits.
    """
    sampled_logits = logits.gather(1, token_ids.long()[:, None])
    torch.sum(logits >= sampled_logits, 1, out=output)


@compiled
def fill_logprob_token_ids(
    out_token_ids: Array,
    out_valid_mask: Array,
    sampled_token_ids: Array,
    topk_indices: Array,
    expanded_idx_mapping: Array,
    num_per_req_token_ids: Array,
    per_req_token_ids: Array,
    NUM_TOPK: int,
) -> None:
    """The tokens whose log probabilities each row returns. `_fill_logprob_token_ids_kernel`.

    Args:
        out_token_ids: int64 [L, 1 + most], is written: the sampled token, then those that its
            request names, or else the likeliest.
        out_valid_mask: bool [L, 1 + most], is set where there is one.
        sampled_token_ids: int64 [L].
        topk_indices: int32 [L, `NUM_TOPK`], the likeliest tokens; is not read if that is 0.
        expanded_idx_mapping: int [L], the request of each row.
        num_per_req_token_ids: int32 [M], how many tokens a request names.
        per_req_token_ids: int32 [M, most], these.
        NUM_TOPK: how many of the likeliest are returned otherwise.
    """
    for row in range(len(out_token_ids)):
        request = expanded_idx_mapping[row]
        out_token_ids[row, 0], out_valid_mask[row, 0] = sampled_token_ids[row], True
        num_token_ids = num_per_req_token_ids[request]
        for i in range(num_token_ids if num_token_ids > 0 else NUM_TOPK):
            token = per_req_token_ids[request, i] if num_token_ids > 0 else topk_indices[row, i]
            out_token_ids[row, 1 + i], out_valid_mask[row, 1 + i] = token, True
