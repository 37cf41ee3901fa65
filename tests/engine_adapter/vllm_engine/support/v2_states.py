"""V2's plain sampler over the states of some requests, without a model."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.engine_adapter.vllm_engine.support.kernel_pairs import with_twins

MOST, CONTEXT = 8, 64
"""Requests, and tokens of each."""

Request = tuple[Sequence[int], Sequence[int], Mapping[str, Any]]
"""Its prompt, its output, and the options of its `SamplingParams`."""


def sampler_of(vocabulary: int, requests: Sequence[Request], kind: type | None = None) -> Any:
    """vLLM's sampler, or a `kind` of it, after a step that left the requests with these tokens."""
    from vllm import SamplingParams

    for module in ("buffer_utils", "sample.gumbel"):
        with_twins(module)
    device = torch.device("cpu")
    states = with_twins("states").RequestState(MOST, CONTEXT, CONTEXT, 6, vocabulary, device)
    config: Any = SimpleNamespace(reasoning_config=None)
    sampler = (kind or with_twins("sample.sampler").Sampler)(
        config, MOST, vocabulary, device, states
    )
    for name, (prompt, output, options) in enumerate(requests):
        params = SamplingParams(**{"temperature": 0.0, **options})
        tokens = [*prompt, *output]
        states.add_request(str(name), len(prompt), tokens, len(tokens) - 1, CONTEXT)
        sampler.add_request(states.req_id_to_index[str(name)], params)
    states.apply_staged_writes()
    sampler.apply_staged_writes()
    return sampler


def rows_of(sampler: Any, names: Sequence[int]) -> Any:
    """The rows of the requests with these numbers, int [R]."""
    return np.array([sampler.req_states.req_id_to_index[str(name)] for name in names])


def verified(
    sampler: Any, names: Sequence[int], tokens: Sequence[Sequence[int]], logits: torch.Tensor
) -> torch.Tensor:
    """The logits [P, V] that a step takes its tokens from, before top-k and top-p.

    Args:
        sampler: of `sampler_of`.
        names: the numbers of the requests in the step.
        tokens: of each what the step reads: its newest token, then its drafts.
        logits: [P, V], at the positions of `tokens`.
    """
    rows, sizes = rows_of(sampler, names), np.array([len(row) for row in tokens])
    place = np.concatenate([np.arange(size) for size in sizes])
    lengths = sampler.req_states.total_len.gpu.numpy()[rows]
    result: torch.Tensor = sampler.apply_sampling_params(
        logits,
        torch.from_numpy(rows.repeat(sizes)),
        torch.from_numpy(rows),
        rows,
        torch.from_numpy((lengths - 1).repeat(sizes) + place),
        torch.tensor([token for row in tokens for token in row], dtype=torch.int32),
        torch.from_numpy(place.astype(np.int32)),
        lengths,
        skip_top_k_top_p=True,
    )
    return result
