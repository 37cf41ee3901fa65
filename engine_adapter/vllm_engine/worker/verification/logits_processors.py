"""vLLM's logits processors, in an engine that speculates and at every position that it verifies.

vLLM leaves `min_p` and `logit_bias` out as soon as speculation is configured, since its rejection
sampler does not apply them to drafted positions, and refuses them at the front end. Here each
processor gets the state of its rows spread over their positions, and vLLM's own code applies it.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification.layout import Positions


def build(vllm_config: Any, device: torch.device) -> Any:
    """All of vLLM's own processors, as it has them without speculation.

    Custom ones stay refused at start, by vLLM: nothing says what they mean at a drafted position.
    """
    kinds = compat.BUILTIN_LOGITS_PROCESSORS
    return compat.LogitsProcessors(kind(vllm_config, device, compat.PIN_MEMORY) for kind in kinds)


def spread(processors: Any, positions: Positions) -> Any:
    """The rows' processors as those of a plain batch of their positions; idle ones are left out."""
    return compat.LogitsProcessors(
        at_positions
        for processor in processors.all
        if (at_positions := _SPREAD[type(processor).__name__](processor, positions)) is not None
    )


def _min_p(processor: Any, positions: Positions) -> Any:
    if not processor.min_p_count:
        return None
    spread = copy.copy(processor)
    spread.min_p = positions.spread(processor.min_p)
    return spread


def _logit_bias(processor: Any, positions: Positions) -> Any:
    if not processor.biases:
        return None
    rows, tokens = processor.logits_slice
    times = positions.sizes[rows]
    entry = torch.arange(len(rows), device=rows.device).repeat_interleave(times)
    offset = torch.arange(len(entry), device=rows.device) - (times.cumsum(0) - times)[entry]
    spread = copy.copy(processor)
    spread.logits_slice = positions.starts[rows][entry] + offset, tokens[entry]
    spread.bias_tensor = processor.bias_tensor[entry]
    return spread


def _min_tokens(processor: Any, positions: Positions) -> Any:
    """Each position has the drafts before it as output, so its row may reach the least there."""
    forbidden: tuple[list[int], list[int]] = [], []
    forced: tuple[list[int], list[int]] = [], []
    for row, (least, output, stops, has_grammar) in processor.min_toks.items():
        for position, offset in positions.of_row(row):
            if len(output) + offset < least:
                for at, token in (forbidden, forced) if has_grammar else (forbidden,):
                    at.extend([position] * len(stops))
                    token.extend(stops)
    if not forbidden[0]:
        return None
    spread = copy.copy(processor)
    device = positions.row.device
    spread.logits_slice = tuple(torch.tensor(index, device=device) for index in forbidden)
    # Where the grammar leaves nothing but a stop, vLLM lets it through.
    spread.restore_logits_slice = tuple(
        torch.tensor(index, dtype=torch.int64, device=device) for index in forced
    )
    return spread


_SPREAD: dict[str, Callable[[Any, Positions], Any]] = {
    "MinPLogitsProcessor": _min_p,
    "LogitBiasLogitsProcessor": _logit_bias,
    "MinTokensLogitsProcessor": _min_tokens,
}
