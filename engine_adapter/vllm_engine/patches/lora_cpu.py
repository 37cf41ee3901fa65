"""LoRA on CPU: keeps rows without an adapter from getting one."""

from collections.abc import Callable
from typing import Any

import torch

from engine_adapter.vllm_engine import compat

_EXPANSIONS = ("bgmv_expand", "bgmv_expand_slice")
"""The last step of every product with an adapter; what it adds is linear in its inputs."""


def spare_rows_without_adapter() -> None:
    """Mends vLLM's CPU operations, where a row of the index -1 gets the last adapter's product.

    Rows with and without an adapter in one batch would otherwise all run with one. Safe to call
    twice.
    """
    for name in _EXPANSIONS:
        operation = getattr(compat.lora_ops, name)
        if not hasattr(operation, "__wrapped__"):
            for module in (compat.lora_ops, compat.punica_cpu):
                setattr(module, name, masked(operation))


def masked(operation: Callable[..., None]) -> Callable[..., None]:
    """The operation, with the inputs of rows without an adapter set to zero."""

    def with_mask(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        output: torch.Tensor,
        adapters: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """`inputs`: [N, rank]; `adapters`: int [N], each row's slot or -1."""
        kept = inputs.masked_fill((adapters < 0)[:, None], 0)
        operation(kept, weights, output, adapters, *args, **kwargs)

    with_mask.__wrapped__ = operation  # type: ignore[attr-defined]
    return with_mask
