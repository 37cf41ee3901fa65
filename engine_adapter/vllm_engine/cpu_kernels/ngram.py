"""Twins of the kernels of vLLM's own n-gram proposer for model runner V2.

The kernels are in vLLM's `v1/worker/gpu/spec_decode/ngram/speculator.py`. A step has R rows, which
are requests; `idx_mapping` int [R] has the index of each among the M that the runner holds.
`token_ids` int32 [M, tokens] has prompts and outputs, `total_len` int32 [M] their lengths. A match
of n tokens that begins at position p has the score n * (`L` + 1) + p + 1: the longest wins, and of
two the later.
"""

from typing import Any

from engine_adapter.vllm_engine.cpu_kernels.compiled import compiled

Array = Any


@compiled
def scan(
    token_ids: Array,
    idx_mapping: Array,
    total_len: Array,
    num_sampled: Array,
    scratch: Array,
    L: int,
    MIN_N: int,
    MAX_N: int,
    BLOCK_L: int,
) -> None:
    """Finds the best earlier occurrence of each text's last tokens. `_ngram_scan_kernel`.

    Args:
        token_ids, idx_mapping, total_len: see the module.
        num_sampled: int32 [R]; a row that has sampled nothing is left out.
        scratch: int64 [R or more, blocks], is written: the best score of the matches that begin in
            each block of `BLOCK_L` tokens, 0 for none.
        L: the longest text.
        MIN_N, MAX_N: how long a match is, both included.
        BLOCK_L: tokens of a block.
    """
    for row in range(len(idx_mapping)):
        tokens, length = token_ids[idx_mapping[row]], total_len[idx_mapping[row]]
        scratch[row] = 0
        if num_sampled[row] <= 0:
            continue
        for end in range(1, length):  # of a match, which is before that of the text
            n = 0
            while n < min(MAX_N, end) and tokens[end - 1 - n] == tokens[length - 1 - n]:
                n += 1
                if n >= MIN_N:
                    first = end - n
                    score = n * (L + 1) + first + 1
                    scratch[row, first // BLOCK_L] = max(scratch[row, first // BLOCK_L], score)


@compiled
def finalize(
    token_ids: Array,
    idx_mapping: Array,
    total_len: Array,
    num_sampled: Array,
    last_sampled: Array,
    scratch: Array,
    drafts: Array,
    L: int,
    N_BLOCKS: int,
    K: int,
) -> None:
    """Drafts the tokens after the best match of each row. `_ngram_finalize_kernel`.

    Args:
        token_ids, idx_mapping, total_len: see the module.
        num_sampled: see `scan`.
        last_sampled: int64 [M], each request's newest token: the draft where there is no other.
        scratch: the scores of `scan`.
        drafts: int64 [R or more, `K`], is written.
        L: the longest text.
        N_BLOCKS: the number of blocks.
        K: how many tokens are drafted.
    """
    for row in range(len(idx_mapping)):
        request = idx_mapping[row]
        score = scratch[row, :N_BLOCKS].max() - 1
        n, first = divmod(score, L + 1)
        found = score >= 0 and num_sampled[row] > 0
        for i in range(K):
            place = first + n + i
            inside = found and place < total_len[request]
            drafts[row, i] = (
                token_ids[request, min(place, L - 1)] if inside else last_sampled[request]
            )
