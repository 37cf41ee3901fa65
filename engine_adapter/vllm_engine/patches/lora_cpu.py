"""LoRA on CPU: rows without an adapter stay without one."""

from collections.abc import Callable
from typing import Any

import torch

from engine_adapter.vllm_engine import compat

_EXPAND_OPERATIONS = ("bgmv_expand", "bgmv_expand_slice")
"""The last operation of every product with an adapter; its result is linear in its inputs."""


def patch_lora_masking() -> None:
    """Fixes vLLM's CPU operations, which give a row with index -1 the last adapter's product.

    Otherwise, in a batch of rows with and without an adapter, every row runs with one.
    """
    if not compat.has_defect("lora_without_adapter"):
        return
    for name in _EXPAND_OPERATIONS:
        operation = getattr(compat.lora_ops, name)
        if not hasattr(operation, "__wrapped__"):
            for module in (compat.lora_ops, compat.punica_cpu):
                setattr(module, name, _masked(operation))


def _masked(operation: Callable[..., None]) -> Callable[..., None]:
    """The operation, with the inputs of rows without an adapter set to zero."""

    def with_mask(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        output: torch.Tensor,
        adapters: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """`inputs`: [N, rank]; `adapters`: int [N], each row's slot, or -1 for none."""
        masked = inputs.masked_fill((adapters < 0)[:, None], 0)
        operation(masked, weights, output, adapters, *args, **kwargs)

    with_mask.__wrapped__ = operation  # type: ignore[attr-defined]
    return with_mask
