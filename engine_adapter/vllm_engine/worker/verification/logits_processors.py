"""vLLM's logits processors at every position that a step verifies.

With speculation, vLLM ignores `min_p` and `logit_bias`, since its rejection sampler does not apply
them to drafted positions, and refuses them at the front end. Here the state of each processor is
expanded from rows to positions, and vLLM's own code applies it.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification.layout import VerifyLayout


def build(vllm_config: Any, device: torch.device) -> Any:
    """All of vLLM's own processors, which vLLM itself builds only without speculation.

    vLLM still refuses custom processors at start: their meaning at a drafted position is unknown.
    """
    kinds = compat.BUILTIN_LOGITS_PROCESSORS
    return compat.LogitsProcessors(kind(vllm_config, device, compat.PIN_MEMORY) for kind in kinds)


def expand(processors: Any, layout: VerifyLayout) -> Any:
    """The rows' processors as those of a plain batch of positions; idle ones are left out."""
    return compat.LogitsProcessors(
        expanded
        for processor in processors.all
        if (expanded := _EXPANDERS[type(processor).__name__](processor, layout)) is not None
    )


def _expand_min_p(processor: Any, layout: VerifyLayout) -> Any:
    if not processor.min_p_count:
        return None
    expanded = copy.copy(processor)
    expanded.min_p = layout.expand(processor.min_p)
    return expanded


def _expand_logit_bias(processor: Any, layout: VerifyLayout) -> Any:
    if not processor.biases:
        return None
    rows, tokens = processor.logits_slice
    sizes = layout.sizes[rows]
    entry = torch.arange(len(rows), device=rows.device).repeat_interleave(sizes)
    offset = torch.arange(len(entry), device=rows.device) - (sizes.cumsum(0) - sizes)[entry]
    expanded = copy.copy(processor)
    expanded.logits_slice = layout.starts[rows][entry] + offset, tokens[entry]
    expanded.bias_tensor = processor.bias_tensor[entry]
    return expanded


def _expand_min_tokens(processor: Any, layout: VerifyLayout) -> Any:
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
    device = layout.row_of.device
    expanded.logits_slice = tuple(torch.tensor(index, device=device) for index in forbidden)
    # vLLM allows a stop token where the grammar allows nothing else.
    expanded.restore_logits_slice = tuple(
        torch.tensor(index, dtype=torch.int64, device=device) for index in forced
    )
    return expanded


_EXPANDERS: dict[str, Callable[[Any, VerifyLayout], Any]] = {
    "MinPLogitsProcessor": _expand_min_p,
    "LogitBiasLogitsProcessor": _expand_logit_bias,
    "MinTokensLogitsProcessor": _expand_min_tokens,
}
