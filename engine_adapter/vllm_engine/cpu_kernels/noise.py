"""Twin of the kernel that samples by Gumbel noise, with the same noise.

The kernel is in vLLM's `v1/worker/gpu/sample/gumbel.py`. A token's noise is a hash (Murmur 3) of
the request's seed, the position and the token, so it does not depend on the batch. The hash and
the uniform number made of it are the kernel's to the bit; logarithms may differ in the last bit, as
they do between GPUs.
"""

from typing import Any

import numpy as np
import torch

from engine_adapter.proposers.machine_code import machine_code
from engine_adapter.vllm_engine.cpu_kernels.compiled import compiled

Array = Any

DRAFT_SALT = 1 << 30
"""Is added to the position where drafts are sampled, so that verification has other noise."""

_U = np.uint64
_32, _16 = _U(0xFFFFFFFF), _U(0xFFFF)
_DOMAIN_HIGH = _U(0x9E3779B9)
_TERMS = tuple(np.float32(1 / n) for n in range(8, 0, -1))
_LEAST = np.float32(5.960464477539063e-08)
_LN_2 = np.float32(0.6931472)
_SLACK = np.float32(1e-3)  # for the rounding of both
_32_BITS = np.int32(127 + 32)  # with the exponent's offset
_NEVER = np.float32(-np.inf)
_HALF, _QUARTER, _ONE = np.float32(0.5), np.float32(0.25), np.float32(1)
_HIGH, _LOW = np.float32(1.52587890625e-05), np.float32(2.3283064365386963e-10)


@machine_code
def _mix(state: Any, key: Any) -> Any:
    key = (key * _U(0xCC9E2D51)) & _32
    key = ((key << _U(15)) | (key >> _U(17))) & _32
    state ^= (key * _U(0x1B873593)) & _32
    state = ((state << _U(13)) | (state >> _U(19))) & _32
    return (state * _U(5) + _U(0xE6546B64)) & _32


@machine_code
def _seed(seed: Any, steps: Any, row: Any) -> Any:
    """The seed of a row, with its step if there are steps."""
    return seed if steps is None else seed ^ steps[row]


@machine_code
def _prefix(seed: Any, position: Any, domain: Any) -> Any:
    """The hash's state before the token, which is that of the whole row."""
    seed, position = _U(seed), _U(position)
    return _mix(_mix(_mix(domain, seed & _32), seed >> _U(32)), position & _32)


@machine_code
def _hash(prefix: Any, token: Any) -> Any:
    """32 bits."""
    state = _mix(prefix, _U(token)) ^ _U(16)
    state ^= state >> _U(16)
    state = (state * _U(0x85EBCA6B)) & _32
    state ^= state >> _U(13)
    state = (state * _U(0xC2B2AE35)) & _32
    return state ^ (state >> _U(16))


@machine_code
def _gumbel(bits: Any) -> Any:
    """Gumbel noise of 32 bits, in float32."""
    uniform = np.float32(bits >> _U(16)) * _HIGH + (np.float32(bits & _16) + _HALF) * _LOW
    if uniform >= _QUARTER:
        log = np.log(max(_ONE - uniform, _LEAST))
    else:
        polynomial = _TERMS[0]
        for term in _TERMS[1:]:
            polynomial = term + uniform * polynomial
        log = -uniform * polynomial
    return -np.log(-log)


@machine_code
def _gumbel_64(low: Any, high: Any) -> Any:
    """Gumbel noise of 64 bits, in float64."""
    bits = ((high << _U(32)) | low) >> _U(11)
    uniform = min((np.float64(bits) + 0.5) * 2.0**-53, 1 - 2.0**-53)
    return -np.log(-np.log(uniform))


@machine_code
def _bounds(logits: Any, bits: Any) -> Any:
    """What logits and noise cannot exceed: -log(u) is more than the noise of u.

    The exponent of the bits as a float32 says between which powers of 2 they are. That is compiled
    to vectors; a logarithm for each token takes four times as long as the rest of the sampling.
    """
    exponents = bits.astype(np.float32).view(np.int32) >> np.int32(23)
    return logits + ((_32_BITS - exponents).astype(np.float32) * _LN_2 + _SLACK)


def gumbel_sample(
    local_argmax: torch.Tensor,
    local_max: torch.Tensor,
    logits_cache: torch.Tensor | None,
    logits_cache_col: torch.Tensor | None,
    logits_cache_source: torch.Tensor | None,
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    seeds: torch.Tensor,
    pos: torch.Tensor,
    temp: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
    IS_DRAFTING: bool,
    APPLY_TEMPERATURE: bool,
    USE_FP64: bool,
    PER_TOKEN_COL: bool,
    *,
    BY_STEP: bool,
) -> None:
    """Samples a token of each block of the vocabulary. `_gumbel_sample_kernel`.

    Args:
        local_argmax: int64 [L, blocks], is written: in each block of `BLOCK_SIZE` tokens the one
            whose logit and noise are most; without noise for a greedy request.
        local_max: float32 or float64 [L, blocks], is written: that sum.
        logits_cache: [M, columns, vocabulary or more], gets the logits of a draft for its later
            verification, in the column `logits_cache_col`.
        logits_cache_col: int, one or [L], as `PER_TOKEN_COL` says.
        logits_cache_source: [L, vocabulary], what `logits_cache` gets.
        logits: [L, vocabulary].
        expanded_idx_mapping: int [L], the request of each row; a negative one is greedy.
        seeds, temp: int64 and float32 [M], of the requests; temperature 0 is greedy.
        pos: int64 [L], the position of each row's token.
        vocab_size: tokens of the vocabulary.
        BLOCK_SIZE: tokens of a block.
        IS_DRAFTING: whether a draft is sampled.
        APPLY_TEMPERATURE: whether the logits are to be divided by it.
        USE_FP64: whether noise and sums have 64 bits.
        PER_TOKEN_COL: see `logits_cache_col`.
        BY_STEP: whether a draft's column is mixed into its seed, as since vLLM 0.33.
    """
    steps = None
    if logits_cache is not None:
        assert logits_cache_source is not None
        assert logits_cache_col is not None
        real = expanded_idx_mapping >= 0
        column = logits_cache_col[real] if PER_TOKEN_COL else logits_cache_col
        requests = expanded_idx_mapping[real].long()
        logits_cache[requests, column, :vocab_size] = logits_cache_source[real]
        if BY_STEP:
            steps = logits_cache_col.long().expand(len(logits)) << 32
    noised_argmax = _noised_argmax_64 if USE_FP64 else _noised_argmax
    noised_argmax(
        *(local_argmax, local_max, logits.float(), expanded_idx_mapping, seeds, steps, pos, temp),
        *(BLOCK_SIZE, DRAFT_SALT if IS_DRAFTING else 0, APPLY_TEMPERATURE),
    )


@compiled
def _noised_argmax(
    argmax: Array,
    maxima: Array,
    logits: Array,
    requests: Array,
    seeds: Array,
    steps: Array | None,
    positions: Array,
    temperatures: Array,
    block_size: int,
    salt: int,
    divide: bool,
) -> None:
    bits = np.empty(block_size, np.uint32)
    for row in range(len(logits)):
        request = requests[row]
        temperature = temperatures[request] if request >= 0 else np.float32(0)
        noisy = temperature != 0
        seed = _seed(seeds[request], steps, row) if noisy else 0
        prefix = _prefix(seed, positions[row] + salt, _U(0))
        for block in range(argmax.shape[1]):
            first_token = block * block_size
            values = logits[row, first_token : first_token + block_size]
            if noisy and divide:
                values = values / temperature
            bounds = values
            if noisy:
                for i in range(len(values)):
                    bits[i] = _hash(prefix, first_token + i)
                bounds = _bounds(values, bits[: len(values)])
            best, best_token = _NEVER, 0
            for i in range(len(values)):
                if bounds[i] > best:
                    value = values[i] + _gumbel(_U(bits[i])) if noisy else values[i]
                    if value > best:
                        best, best_token = value, i
            argmax[row, block], maxima[row, block] = first_token + best_token, best


@compiled
def _noised_argmax_64(
    argmax: Array,
    maxima: Array,
    logits: Array,
    requests: Array,
    seeds: Array,
    steps: Array | None,
    positions: Array,
    temperatures: Array,
    block_size: int,
    salt: int,
    divide: bool,
) -> None:
    vocabulary = logits.shape[1]
    for row in range(len(logits)):
        request = requests[row]
        temperature = temperatures[request] if request >= 0 else np.float32(0)
        noisy = temperature != 0
        divisor = temperature if noisy and divide else np.float32(1)
        low = high = _U(0)
        if noisy:
            seed = _seed(seeds[request], steps, row)
            low = _prefix(seed, positions[row] + salt, _U(0))
            high = _prefix(seed, positions[row] + salt, _DOMAIN_HIGH)
        for block in range(argmax.shape[1]):
            first_token = block * block_size
            best, best_token = -np.inf, first_token
            for token in range(first_token, min(first_token + block_size, vocabulary)):
                value = np.float64(logits[row, token] / divisor)
                if noisy:
                    value += _gumbel_64(_hash(low, token), _hash(high, token))
                if value > best:
                    best, best_token = value, token
            argmax[row, block], maxima[row, block] = best_token, best
