"""Twins of the kernels that end a request's reasoning after a number of tokens.

The kernels are in vLLM's `v1/worker/gpu/sample/thinking_budget.py`. Reasoning is open if the last
mark of its begin stands after the last mark of its end. Where it is open and has as many tokens as
the budget allows, the next token of the forced end is all that can be sampled.

There are M requests and L rows of logits, as `logits` describes them.
"""

from typing import Any

import numpy as np

from engine_adapter.proposers.machine_code import machine_code
from engine_adapter.vllm_engine.cpu_kernels.compiled import compiled

Array = Any

_FORCED = np.float32(1e9)


@machine_code
def _last_match(tokens: Array, marker: Array, begin: int, end: int) -> int:
    """The last position in [begin, end) at which the tokens have the marker; -1 without one."""
    for position in range(min(end, len(tokens) - len(marker) + 1) - 1, begin - 1, -1):
        if np.all(tokens[position : position + len(marker)] == marker):
            return position
    return -1


@machine_code
def _overlap(tokens: Array, marker: Array) -> int:
    """How many tokens of the marker, but not all, the tokens end with."""
    for length in range(min(len(marker) - 1, len(tokens)), 0, -1):
        if np.all(tokens[len(tokens) - length :] == marker[:length]):
            return length
    return 0


@compiled
def update_committed_marker_cache(
    req_ids: Array,
    thinking_token_budget: Array,
    all_token_ids: Array,
    total_len: Array,
    cached_last_start: Array,
    cached_last_end: Array,
    cached_scan_pos: Array,
    reasoning_start_token_ids: Array,
    natural_reasoning_end_token_ids: Array,
    MAX_LEN: int,
    BLOCK: int,
) -> None:
    """Notes the last marks in the sampled tokens. `_update_committed_marker_cache_kernel`.

    A request that was not looked at is searched from its end, and only to the first block with a
    mark: which of the two is later is all that is read.

    Args:
        req_ids: int [R], the requests of the step.
        thinking_token_budget: int32 [M], tokens of reasoning; -1 without a limit.
        all_token_ids: int32 [M, tokens], prompts and outputs.
        total_len: int32 [M], their lengths.
        cached_last_start, cached_last_end: int32 [M], positions of the last marks, or -1.
        cached_scan_pos: int32 [M], where the search continues.
        reasoning_start_token_ids: int32, the mark of the begin.
        natural_reasoning_end_token_ids: int32, the mark of the end.
        MAX_LEN: the length of the longer mark.
        BLOCK: tokens that a search looks at in one go.
    """
    for request in req_ids:
        if thinking_token_budget[request] < 0:
            continue
        length = total_len[request]
        tokens = all_token_ids[request, :length]
        scanned = cached_scan_pos[request]
        start, end = cached_last_start[request], cached_last_end[request]
        if scanned > length:
            scanned, start, end = 0, -1, -1
        if scanned == 0 and start < 0 and end < 0:
            high = length
            while high > 0 and start < 0 and end < 0:
                low = max(high - BLOCK, 0)
                start = _last_match(tokens, reasoning_start_token_ids, low, high)
                end = _last_match(tokens, natural_reasoning_end_token_ids, low, high)
                high = low
        else:
            start = max(start, _last_match(tokens, reasoning_start_token_ids, scanned, length))
            end = max(end, _last_match(tokens, natural_reasoning_end_token_ids, scanned, length))
        cached_last_start[request], cached_last_end[request] = start, end
        cached_scan_pos[request] = max(length - (MAX_LEN - 1), 0)


@compiled
def thinking_budget(
    logits: Array,
    expanded_idx_mapping: Array,
    thinking_token_budget: Array,
    all_token_ids: Array,
    total_len: Array,
    input_ids: Array,
    expanded_local_pos: Array,
    cached_last_start: Array,
    cached_last_end: Array,
    reasoning_start_token_ids: Array,
    natural_reasoning_end_token_ids: Array,
    reasoning_end_token_ids: Array,
) -> None:
    """Forces the end of reasoning that is as long as allowed. `_thinking_budget_kernel`.

    A row's text is what was sampled, and the drafts before the row.

    Args:
        logits: float32 [L, vocabulary].
        expanded_idx_mapping, expanded_local_pos: see `logits`.
        input_ids: int [L], the step's token of each row.
        reasoning_end_token_ids: int32, what is forced: it ends with the mark of the end.
        thinking_token_budget, all_token_ids, total_len, cached_last_start, cached_last_end,
        reasoning_start_token_ids, natural_reasoning_end_token_ids: see the function above.
    """
    longest = max(len(reasoning_start_token_ids), len(natural_reasoning_end_token_ids))
    longest = max(longest, len(reasoning_end_token_ids))
    for row in range(len(logits)):
        request, place = expanded_idx_mapping[row], expanded_local_pos[row]
        budget = thinking_token_budget[request]
        if budget < 0:
            continue
        # The end of the text: the drafts, and as many tokens before them as a mark can have.
        length = total_len[request]
        offset = max(length - longest + 1, 0)
        text = np.empty(length + place - offset, np.int32)
        text[: length - offset] = all_token_ids[request, offset:length]
        text[length - offset :] = input_ids[row - place + 1 : row + 1]
        last_start, last_end = cached_last_start[request], cached_last_end[request]
        match = _last_match(text, reasoning_start_token_ids, 0, len(text))
        last_start = offset + match if match >= 0 else last_start
        match = _last_match(text, natural_reasoning_end_token_ids, 0, len(text))
        last_end = offset + match if match >= 0 else last_end
        if last_start < 0 or last_start <= last_end:
            continue
        if length + place - (last_start + len(reasoning_start_token_ids)) < budget:
            continue
        # A text that ends with a part of the forced end, perhaps by chance, is continued.
        logits[row, reasoning_end_token_ids[_overlap(text, reasoning_end_token_ids)]] = _FORCED
