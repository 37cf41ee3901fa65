"""Twins of the kernels that prepare a step's input and note its results.

The kernels are in vLLM's `v1/worker/gpu`: `input_batch.py`, `mm/rope.py`,
`sample/prompt_logprob.py` and `model_states/mamba_hybrid.py`. A step has R rows, which are
requests; `idx_mapping`
int [R] has the index of each among the M that the runner holds. `query_start_loc` int32 [R + 1]
says where each row's tokens begin among the step's T, and `cu_num_logits` int32 [R + 1] the same of
its L logits. `all_token_ids` int32 [M, tokens] has prompts and outputs; `prefill_lens` int32 [M]
how many of them must be computed before a token can be sampled, `num_computed_tokens` int32 [M] how
many are.
"""

from typing import Any

import numpy as np

from engine_adapter.vllm_engine.cpu_kernels.compiled import compiled

Array = Any
"""An array as numba sees it: its indices and elements are compiled, not checked."""


@compiled
def prepare_prefill_inputs(
    input_ids: Array,
    next_prefill_tokens: Array,
    num_lookahead: int,
    idx_mapping: Array,
    query_start_loc: Array,
    all_token_ids: Array,
    prefill_lens: Array,
    num_computed_tokens: Array,
) -> None:
    """Copies the prompts' tokens of a step, and those after them. `_prepare_prefill_inputs_kernel`.

    Args:
        input_ids: int32 [T], is written in rows that have not computed their prompt.
        next_prefill_tokens: int32 [lookahead, M], is written for these: the tokens after the
            step's, 0 behind the prompt.
        num_lookahead: the number of rows of `next_prefill_tokens`.
        idx_mapping, query_start_loc, all_token_ids, prefill_lens, num_computed_tokens: see the
            module.
    """
    for row in range(len(idx_mapping)):
        request = idx_mapping[row]
        computed, prefill = num_computed_tokens[request], prefill_lens[request]
        if computed >= prefill:
            continue
        start, end = query_start_loc[row], query_start_loc[row + 1]
        for i in range(end - start):
            input_ids[start + i] = all_token_ids[request, computed + i]
        next_position = computed + end - start
        for i in range(num_lookahead):
            inside = next_position + i < prefill
            token = all_token_ids[request, next_position + i] if inside else 0
            next_prefill_tokens[i, request] = token


@compiled
def prepare_rope_positions(
    positions: Array,
    prefill_positions: Array,
    prefill_delta: Array,
    idx_mapping: Array,
    query_start_loc: Array,
    prefill_lens: Array,
    num_computed_tokens: Array,
    NUM_DIMS: int,
) -> None:
    """Writes each token's position in time, height and width. `_prepare_rope_positions_kernel`.

    Args:
        positions: int64 [`NUM_DIMS`, T + 1], is written.
        prefill_positions: int32 [M * `NUM_DIMS`, tokens], those of each request's prompt.
        prefill_delta: int32 [M], how far positions behind the prompt are from a token's place.
        idx_mapping, query_start_loc, prefill_lens, num_computed_tokens: see the module.
        NUM_DIMS: the dimensions of a position.
    """
    for row in range(len(idx_mapping)):
        request = idx_mapping[row]
        computed = num_computed_tokens[request]
        start, end = query_start_loc[row], query_start_loc[row + 1]
        for dim in range(NUM_DIMS):
            for i in range(end - start):
                place = computed + i
                if computed < prefill_lens[request]:
                    position = prefill_positions[request * NUM_DIMS + dim, place]
                else:
                    position = place + prefill_delta[request]
                positions[dim, start + i] = position


@compiled
def prepare_pos_seq_lens(
    pos: Array,
    seq_lens: Array,
    idx_mapping: Array,
    query_start_loc: Array,
    num_computed_tokens: Array,
    max_num_reqs: int,
) -> None:
    """Writes each token's position and each row's length. `_prepare_pos_seq_lens_kernel`.

    Args:
        pos: int64 [T], is written.
        seq_lens: int32 [`max_num_reqs`], is written: computed tokens and those of the step; 0
            behind the rows.
        idx_mapping, query_start_loc, num_computed_tokens: see the module.
        max_num_reqs: the length of `seq_lens`.
    """
    for row in range(len(idx_mapping)):
        computed = num_computed_tokens[idx_mapping[row]]
        start, end = query_start_loc[row], query_start_loc[row + 1]
        seq_lens[row] = computed + end - start
        for i in range(end - start):
            pos[start + i] = computed + i
    seq_lens[len(idx_mapping) : max_num_reqs] = 0


@compiled
def combine_sampled_and_draft_tokens(
    input_ids: Array,
    idx_mapping: Array,
    last_sampled_tokens: Array,
    query_start_loc: Array,
    seq_lens: Array,
    prefill_len: Array,
    draft_tokens: Array,
    cu_num_logits: Array,
    logits_indices: Array,
    NUM_NEW_SAMPLED_TOKENS: int = 1,
) -> None:
    """Writes sampled tokens and drafts into the input. `_combine_sampled_and_draft_tokens_kernel`.

    Args:
        input_ids: int32 [T], is written in rows that have computed their prompt.
        idx_mapping, query_start_loc, prefill_len, cu_num_logits: see the module.
        last_sampled_tokens: int64 [M] or [M, 1], a request's newest token.
        seq_lens: int32 [R], with the step's tokens.
        draft_tokens: int64 [M, drafts]; a row has as many as it has logits but one.
        logits_indices: int64 [L], is written: the tokens of the step whose logits are needed, which
            are the last of each row.
        NUM_NEW_SAMPLED_TOKENS: 1, or 0 if a row's first logit is that of a draft.
    """
    for row in range(len(idx_mapping)):
        request = idx_mapping[row]
        first_logit, end = cu_num_logits[row], query_start_loc[row + 1]
        logits = cu_num_logits[row + 1] - first_logit
        for i in range(logits):
            logits_indices[first_logit + i] = end - logits + i
        if seq_lens[row] <= prefill_len[request]:
            continue
        if NUM_NEW_SAMPLED_TOKENS and seq_lens[row] - logits >= prefill_len[request]:
            input_ids[end - logits] = last_sampled_tokens.flat[request]
        drafts = logits - NUM_NEW_SAMPLED_TOKENS
        for i in range(drafts):
            input_ids[end - drafts + i] = draft_tokens[request, i]


@compiled
def get_num_sampled_and_rejected(
    num_sampled: Array,
    num_rejected: Array,
    seq_lens: Array,
    cu_num_logits: Array,
    idx_mapping: Array,
    prefill_len: Array,
) -> None:
    """Counts each row's rejected drafts. `_get_num_sampled_and_rejected_kernel`.

    Args:
        num_sampled: int32 [R], is set to 0 in rows whose prompt is not at its end.
        num_rejected: int32 [R], is written; 0 in these rows.
        seq_lens: int32 [R], with the step's tokens.
        cu_num_logits, idx_mapping, prefill_len: see the module.
    """
    for row in range(len(idx_mapping)):
        if seq_lens[row] < prefill_len[idx_mapping[row]]:
            num_sampled[row] = num_rejected[row] = 0
        else:
            num_rejected[row] = cu_num_logits[row + 1] - cu_num_logits[row] - num_sampled[row]


@compiled
def post_update(
    idx_mapping: Array,
    num_computed_tokens: Array,
    last_sampled_tokens: Array,
    output_bin_counts: Array | None,
    sampled_tokens: Array,
    num_sampled: Array,
    num_rejected: Array,
    query_start_loc: Array | None,
    all_token_ids: Array,
    total_len: Array,
    draft_tokens: Array | None = None,
    draft_tokens_out: Array | None = None,
    num_draft_tokens: int = 0,
) -> None:
    """Notes what a step sampled. `_post_update_kernel`.

    Args:
        idx_mapping: see the module; a row with a negative one is passed over.
        num_computed_tokens: is raised by the row's tokens without the rejected ones.
        last_sampled_tokens: int64 [M] or [M, 1], gets the row's newest token.
        output_bin_counts: int32 [M, vocabulary], counts the tokens of each output.
        sampled_tokens: int [R, tokens], of which a row has `num_sampled`.
        num_sampled, num_rejected: int32 [R].
        query_start_loc: see the module; without it no row had tokens in the step.
        all_token_ids, total_len: get the sampled tokens, and their number.
        draft_tokens: int64 [R, `num_draft_tokens`], the drafts of the next step, which
            `draft_tokens_out` [M, `num_draft_tokens`] gets; since vLLM 0.33.
        draft_tokens_out, num_draft_tokens: see `draft_tokens`.
    """
    for row in range(len(idx_mapping)):
        request = idx_mapping[row]
        if request < 0:
            continue
        if draft_tokens is not None and draft_tokens_out is not None:
            draft_tokens_out[request, :num_draft_tokens] = draft_tokens[row, :num_draft_tokens]
        length = total_len[request]
        for i in range(num_sampled[row]):
            token = sampled_tokens[row, i]
            all_token_ids[request, length + i] = token
            last_sampled_tokens.flat[request] = token
            if output_bin_counts is not None:
                output_bin_counts[request, token] += 1
        total_len[request] += max(num_sampled[row], 0)
        if query_start_loc is not None:
            num_computed_tokens[request] += query_start_loc[row + 1] - query_start_loc[row]
        num_computed_tokens[request] -= num_rejected[row]


@compiled
def post_update_num_computed_tokens(
    idx_mapping: Array, num_computed_tokens: Array, query_start_loc: Array
) -> None:
    """Counts a step's tokens as computed. `_post_update_num_computed_tokens_kernel`.

    Args:
        idx_mapping, query_start_loc: see the module.
        num_computed_tokens: is raised by the row's tokens.
    """
    for row in range(len(idx_mapping)):
        tokens = query_start_loc[row + 1] - query_start_loc[row]
        num_computed_tokens[idx_mapping[row]] += tokens


@compiled
def expand_idx_mapping(
    idx_mapping: Array,
    expanded_idx_mapping: Array,
    expanded_local_pos: Array,
    cu_num_logits: Array,
) -> None:
    """Gives each logit its request, and its place in its row. `_expand_idx_mapping_kernel`.

    Args:
        idx_mapping, cu_num_logits: see the module.
        expanded_idx_mapping: int [L], is written.
        expanded_local_pos: int32 [L], is written: 0 for a row's first.
    """
    for row in range(len(idx_mapping)):
        first_logit = cu_num_logits[row]
        for i in range(cu_num_logits[row + 1] - first_logit):
            expanded_idx_mapping[first_logit + i] = idx_mapping[row]
            expanded_local_pos[first_logit + i] = i


@compiled
def prompt_logprobs_token_ids(
    prompt_logprobs_token_ids: Array,
    query_start_loc: Array,
    idx_mapping: Array,
    num_computed_tokens: Array,
    all_token_ids: Array,
) -> None:
    """The token after each of a step's. `_prompt_logprobs_token_ids_kernel`.

    Args:
        prompt_logprobs_token_ids: int64 [T], is written.
        query_start_loc, idx_mapping, num_computed_tokens, all_token_ids: see the module.
    """
    last_position = np.int64(all_token_ids.shape[1] - 1)
    for row in range(len(idx_mapping)):
        request = idx_mapping[row]
        start, next_position = query_start_loc[row], num_computed_tokens[request] + 1
        for i in range(query_start_loc[row + 1] - start):
            # Behind the longest sequence there is none; nothing reads that row's last result.
            token = all_token_ids[request, min(np.int64(next_position + i), last_position)]
            prompt_logprobs_token_ids[start + i] = token


@compiled
def scatter_num_accepted(idx_mapping: Array, num_sampled: Array, num_accepted: Array) -> None:
    """Tells recurrent layers how many tokens a step sampled. `_scatter_num_accepted_kernel`.

    Args:
        idx_mapping: see the module; a row with a negative one is passed over.
        num_sampled: int32 [R].
        num_accepted: int32 [M], is written: at least 1.
    """
    for row in range(len(idx_mapping)):
        if idx_mapping[row] >= 0:
            num_accepted[idx_mapping[row]] = max(num_sampled[row], 1)


@compiled
def fill_num_accepted(idx_mapping: Array, num_accepted: Array, num_sampled: int) -> None:
    """The same with one number for all rows. `_fill_num_accepted_kernel`."""
    for request in idx_mapping:
        if request >= 0:
            num_accepted[request] = num_sampled
