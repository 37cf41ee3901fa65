"""A request's sampling options at every position that a step verifies, or that a model drafts.

With speculation, vLLM ignores `min_p` and `logit_bias`, since its rejection sampler does not apply
them to drafted positions, and refuses them at the front end. Here the state of each processor is
expanded from rows to positions, and vLLM's own code applies it.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from engine_adapter.staging import to_device
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification.layout import Layout

_PENALTIES = (
    "prompt_token_ids",
    "frequency_penalties",
    "presence_penalties",
    "repetition_penalties",
)
"""What penalties are computed from, beside the output."""


def build(vllm_config: Any, device: torch.device) -> Any:
    """All of vLLM's own processors, which vLLM itself builds only without speculation.

    vLLM still refuses custom processors at start: their meaning at a drafted position is unknown.
    """
    kinds = compat.BUILTIN_LOGITS_PROCESSORS
    return compat.LogitsProcessors(kind(vllm_config, device, compat.PIN_MEMORY) for kind in kinds)


def expand_metadata(
    rows: Any,
    layout: Layout,
    outputs: list[list[int]],
    generators: Mapping[int, torch.Generator],
) -> Any:
    """The rows' sampling metadata as that of a plain batch of their positions.

    Args:
        rows: vLLM's `SamplingMetadata`.
        outputs: the output before each position, if `reads_outputs`.
        generators: position -> its generator.
    """
    penalties = {}
    if not rows.no_penalties:  # vLLM's batch has their tensors also where no row uses them
        penalties = {name: layout.expand(getattr(rows, name)) for name in _PENALTIES}
    return replace(
        rows,
        temperature=layout.expand(rows.temperature),
        top_p=layout.expand(rows.top_p),
        top_k=layout.expand(rows.top_k),
        generators=generators,
        **penalties,
        output_token_ids=outputs,
        allowed_token_ids_mask=layout.expand(rows.allowed_token_ids_mask),
        bad_words_token_ids={
            position: words
            for row, words in rows.bad_words_token_ids.items()
            for position, _ in layout.positions_of(row)
        },
        logitsprocs=expand(rows.logitsprocs, layout),
        spec_token_ids=None,
    )


def reads_outputs(rows: Any) -> bool:
    """Whether an option of a row depends on the row's output, `min_tokens` apart."""
    return bool(not rows.no_penalties or rows.bad_words_token_ids)


def are_idle(rows: Any, *, samples: bool) -> bool:
    """Whether no row has an option that changes logits; temperature, top-k and top-p aside.

    Args:
        samples: tokens are sampled; otherwise options that leave the likeliest token do not count.
    """
    processors = rows.logitsprocs.all if samples else rows.logitsprocs.non_argmax_invariant
    return not (
        reads_outputs(rows)
        or rows.allowed_token_ids_mask is not None
        or any(_IN_USE[type(one).__name__](one) for one in processors)
    )


def expand(processors: Any, layout: Layout) -> Any:
    """The rows' processors as those of a plain batch of positions; idle ones are left out."""
    return compat.LogitsProcessors(
        expanded
        for processor in processors.all
        if (expanded := _EXPANDERS[type(processor).__name__](processor, layout)) is not None
    )


def _expand_min_p(processor: Any, layout: Layout) -> Any:
    if not processor.min_p_count:
        return None
    expanded = copy.copy(processor)
    expanded.min_p = layout.expand(processor.min_p)
    return expanded


def _expand_logit_bias(processor: Any, layout: Layout) -> Any:
    if not processor.biases:
        return None
    rows, tokens = processor.logits_slice
    sizes = layout.sizes[rows]
    count = sum(
        len(biases) * sum(1 for _ in layout.positions_of(row))
        for row, biases in processor.biases.items()
    )
    entry = torch.arange(len(rows), device=rows.device).repeat_interleave(sizes, output_size=count)
    offset = torch.arange(len(entry), device=rows.device) - (sizes.cumsum(0) - sizes)[entry]
    expanded = copy.copy(processor)
    expanded.logits_slice = layout.starts[rows][entry] + offset, tokens[entry]
    expanded.bias_tensor = processor.bias_tensor[entry]
    return expanded


def _expand_min_tokens(processor: Any, layout: Layout) -> Any:
    """The output of a position includes the drafts before it, which may reach the minimum."""
    forbidden: tuple[list[int], list[int]] = [], []
    forced: tuple[list[int], list[int]] = [], []
    for row, (min_tokens, output, stops, has_grammar) in processor.min_toks.items():
        for position, offset in layout.positions_of(row):
            if len(output) + offset < min_tokens:
                for positions, tokens in (forbidden, forced) if has_grammar else (forbidden,):
                    positions.extend([position] * len(stops))
                    tokens.extend(stops)
    if not forbidden[0]:
        return None
    expanded = copy.copy(processor)
    staged = to_device(
        layout.device, *(np.array(index, np.int64) for index in (*forbidden, *forced))
    )
    expanded.logits_slice = tuple(staged[:2])
    # vLLM allows a stop token where the grammar allows nothing else.
    expanded.restore_logits_slice = tuple(staged[2:])
    return expanded


_EXPANDERS: dict[str, Callable[[Any, Layout], Any]] = {
    "MinPLogitsProcessor": _expand_min_p,
    "LogitBiasLogitsProcessor": _expand_logit_bias,
    "MinTokensLogitsProcessor": _expand_min_tokens,
}

_IN_USE: dict[str, Callable[[Any], bool]] = {
    "MinPLogitsProcessor": lambda processor: bool(processor.min_p_count),
    "LogitBiasLogitsProcessor": lambda processor: bool(processor.biases),
    "MinTokensLogitsProcessor": lambda processor: bool(processor.min_toks),
}
