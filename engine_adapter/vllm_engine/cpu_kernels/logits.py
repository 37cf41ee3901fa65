"""Twins of the kernels that change logits before a token is sampled.

The kernels are in vLLM's `v1/worker/gpu/sample` and in `structured_outputs.py`. There are L rows of
logits, [L, vocabulary], of M requests; `expanded_idx_mapping` int [L] has each row's request, and
`expanded_local_pos` int32 [L] its place among the rows of its request: row 0 follows the last
sampled token, and row i the drafts up to the i-th. All change the logits in place.
"""

from typing import Any

import numpy as np
import torch

from engine_adapter.vllm_engine.cpu_kernels.compiled import compiled

Array = Any

_NEVER = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0), np.float32(1)


def temperature(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    vocab_size: int,
) -> None:
    """Divides each row by its request's temperature, unless that is 0. `_temperature_kernel`.

    Args:
        logits: float32 [L, vocabulary].
        expanded_idx_mapping: see the module.
        temperature: float32 [M].
        vocab_size: the width of the logits.
    """
    divisors = temperature[expanded_idx_mapping]
    logits.div_(divisors.masked_fill(divisors == 0, 1)[:, None])


def min_p(
    logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, min_p: torch.Tensor, vocab_size: int
) -> None:
    """Forbids what is less likely than a share of the likeliest token. `_min_p_kernel`.

    Args:
        logits: float32 [L, vocabulary].
        expanded_idx_mapping: see the module.
        min_p: float32 [M], the share; 0 forbids nothing.
        vocab_size: the width of the logits.
    """
    threshold = logits.amax(1) + min_p[expanded_idx_mapping].log()  # minus infinity for share 0
    logits.masked_fill_(logits < threshold[:, None], float("-inf"))


@compiled
def penalties(
    logits: Array,
    expanded_idx_mapping: Array,
    token_ids: Array,
    expanded_local_pos: Array,
    repetition_penalty: Array,
    frequency_penalty: Array,
    presence_penalty: Array,
    prompt_bin_mask: Array,
    output_bin_counts: Array,
    vocab_size: int,
) -> None:
    """Applies the three penalties to tokens of the prompt and the output. `_penalties_kernel`.

    Args:
        logits: float32 [L, vocabulary].
        expanded_idx_mapping, expanded_local_pos: see the module.
        token_ids: int [L], the step's token of each row; those of a request's rows before count as
            its output.
        repetition_penalty, frequency_penalty, presence_penalty: float32 [M].
        prompt_bin_mask: int32 [M, vocabulary / 32], a bit for each token of the prompt.
        output_bin_counts: int32 [M, vocabulary], how often a token is in the output.
        vocab_size: the width of the logits.
    """
    drafted = np.zeros(vocab_size, np.int32)
    for row in range(len(logits)):
        request = expanded_idx_mapping[row]
        repetition, frequency = repetition_penalty[request], frequency_penalty[request]
        presence = presence_penalty[request]
        if repetition == _ONE and frequency == _ZERO and presence == _ZERO:
            continue
        first_row = row - expanded_local_pos[row]
        for earlier_row in range(first_row + 1, row + 1):
            drafted[token_ids[earlier_row]] += 1
        inverse = _ONE / repetition
        for token in range(vocab_size):
            count = output_bin_counts[request, token] + drafted[token]
            in_prompt = (prompt_bin_mask[request, token >> 5] >> (token & 31)) & 1
            if not count and not in_prompt:
                continue
            logit = logits[row, token]
            logit *= inverse if logit > _ZERO else repetition
            logit -= frequency * np.float32(count)
            if count > 0:
                logit -= presence
            logits[row, token] = logit
        for earlier_row in range(first_row + 1, row + 1):
            drafted[token_ids[earlier_row]] = 0


@compiled
def bincount(
    expanded_idx_mapping: Array,
    all_token_ids: Array,
    prompt_len: Array,
    prefill_len: Array,
    prompt_bin_mask: Array,
    output_bin_counts: Array,
) -> None:
    """Counts the tokens of requests that begin, for their penalties. `_bincount_kernel`.

    Args:
        expanded_idx_mapping: int [R], the requests.
        all_token_ids: int32 [M, tokens].
        prompt_len: int32 [M].
        prefill_len: int32 [M], with the output of a request that was preempted.
        prompt_bin_mask: int32 [M, vocabulary / 32], 0 in these requests, gets a bit for each token
            of the prompt.
        output_bin_counts: int32 [M, vocabulary], 0 in these requests, counts the output.
    """
    for request in expanded_idx_mapping:
        for i in range(prompt_len[request]):
            token = all_token_ids[request, i]
            prompt_bin_mask[request, token >> 5] |= np.int32(1) << np.int32(token & 31)
        for i in range(prompt_len[request], prefill_len[request]):
            output_bin_counts[request, all_token_ids[request, i]] += 1


@compiled
def bias(
    logits: Array,
    vocab_size: int,
    expanded_idx_mapping: Array,
    num_allowed_token_ids: Array,
    allowed_token_ids: Array,
    num_logit_bias: Array,
    bias_token_ids: Array,
    bias: Array,
    pos: Array,
    min_lens: Array,
    num_stop_token_ids: Array,
    restore_when_all_masked: Array,
    stop_token_ids: Array,
    CHECK_ALL_MASKED_ROWS: bool,
) -> None:
    """Applies allowed tokens, then biases, then the least length. `_bias_kernel`.

    Args:
        logits: float32 [L, vocabulary].
        vocab_size: the width of the logits.
        expanded_idx_mapping: see the module.
        num_allowed_token_ids, allowed_token_ids: int32 [M] and [M, most]; 0 allows all.
        num_logit_bias, bias_token_ids, bias: int32 [M], int32 and float32 [M, most].
        pos: int64 [L], the position of each row's token.
        min_lens: int32 [M], the length before which a text may not end.
        num_stop_token_ids, stop_token_ids: int32 [M] and [M, most], the tokens that end it.
        restore_when_all_masked: int32 [M], whether they stay if a grammar allows no others.
        CHECK_ALL_MASKED_ROWS: whether a request of the step says so.
    """
    for row in range(len(logits)):
        request = expanded_idx_mapping[row]
        allowed = num_allowed_token_ids[request]
        if allowed > 0:
            tokens = allowed_token_ids[request, :allowed]
            saved = logits[row][tokens]
            logits[row, :vocab_size] = _NEVER
            for i in range(allowed):
                logits[row, tokens[i]] = saved[i]
        for i in range(num_logit_bias[request]):
            logits[row, bias_token_ids[request, i]] += bias[request, i]
        stops = num_stop_token_ids[request]
        if stops > 0 and pos[row] + 1 < min_lens[request]:
            tokens = stop_token_ids[request, :stops]
            saved = logits[row][tokens]
            for token in tokens:
                logits[row, token] = _NEVER
            restorable = CHECK_ALL_MASKED_ROWS and restore_when_all_masked[request] != 0
            if restorable and logits[row, :vocab_size].max() == _NEVER:
                for i in range(stops):
                    if np.isfinite(saved[i]):
                        logits[row, tokens[i]] = saved[i]


@compiled
def bad_words(
    logits: Array,
    expanded_idx_mapping: Array,
    bad_word_token_ids: Array,
    bad_word_offsets: Array,
    num_bad_words: Array,
    all_token_ids: Array,
    prompt_len: Array,
    total_len: Array,
    input_ids: Array,
    expanded_local_pos: Array,
) -> None:
    """Forbids the last token of each bad word whose others were just written. `_bad_words_kernel`.

    Args:
        logits: float32 [L, vocabulary].
        expanded_idx_mapping, expanded_local_pos: see the module.
        bad_word_token_ids: int32 [M, most], each request's words one after the other.
        bad_word_offsets: int32 [M, most], where each begins, and the end of the last.
        num_bad_words: int32 [M].
        all_token_ids: int32 [M, tokens], prompts and outputs.
        prompt_len, total_len: int32 [M]; the output is between them.
        input_ids: int [L], the step's token of each row.
    """
    for row in range(len(logits)):
        request, place = expanded_idx_mapping[row], expanded_local_pos[row]
        prompt = prompt_len[request]
        output = total_len[request] - prompt
        for word in range(num_bad_words[request]):
            start, end = bad_word_offsets[request, word], bad_word_offsets[request, word + 1]
            begin = output + place - (end - start - 1)
            matches = begin >= 0
            for i in range(end - start - 1):
                if not matches:
                    break
                position = begin + i
                if position < output:
                    token = all_token_ids[request, prompt + position]
                else:  # a draft: the step's tokens begin with the last one of the output
                    token = input_ids[row - place + position - output + 1]
                matches = token == bad_word_token_ids[request, start + i]
            if matches:
                logits[row, bad_word_token_ids[request, end - 1]] = _NEVER


def grammar_bitmask(
    logits: torch.Tensor,
    logits_indices: torch.Tensor,
    cu_num_logits: torch.Tensor,
    bitmask: torch.Tensor,
    vocab_size: int,
    MASK_STRIDE: int,
) -> None:
    """Forbids what a request's grammar does not allow. `_apply_grammar_bitmask_kernel`.

    Args:
        logits: [L, vocabulary], of any float type.
        logits_indices: int32 [N], for each mask its row among those of the step's requests, times
            `MASK_STRIDE`, and its place among the rows of the request.
        cu_num_logits: int32 [R + 1], where each request's rows begin.
        bitmask: int32 [N, vocabulary / 32], a bit for each allowed token.
        vocab_size: the width of the logits.
        MASK_STRIDE: the most rows that a request can have.
    """
    # Minus infinity as an integer of the same size: numpy does not have bfloat16.
    integers = torch.int16 if logits.element_size() == 2 else torch.int32
    never = logits.new_full((1,), float("-inf")).view(integers)
    _forbid(
        *(logits.view(integers), never, logits_indices, cu_num_logits, bitmask),
        *(vocab_size, MASK_STRIDE),
    )


@compiled
def _forbid(
    logits: Array,
    never: Array,
    places: Array,
    starts: Array,
    masks: Array,
    vocabulary: int,
    stride: int,
) -> None:
    for mask in range(len(places)):
        row, place = divmod(places[mask], stride)
        if starts[row] + place >= starts[row + 1]:
            continue
        target = starts[row] + place
        for token in range(min(vocabulary, masks.shape[1] * 32)):
            if not (masks[mask, token >> 5] >> (token & 31)) & 1:
                logits[target, token] = never[0]
