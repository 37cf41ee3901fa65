"""Rotary embeddings on a CPU, of queries and keys that are split into heads.

vLLM's kernel for CPUs takes the distance between two heads for that between two tokens, if heads
have a dimension of their own (`RotaryEmbedding.forward_cpu` in
`model_executor/layers/rotary_embedding/base.py`). LFM 2 and latent attention are written so, and
their texts are not the model's.
"""

from functools import wraps
from typing import Any

import torch

from engine_adapter.vllm_engine import compat


def patch_rotary_embedding() -> None:
    """Gives the kernel rows without a dimension for heads; must run before a model is made."""
    kernel = compat.RotaryEmbedding.forward_cpu
    if getattr(kernel, "__module__", None) == __name__:
        return

    @wraps(kernel, assigned=())
    def forward_cpu(
        layer: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if query.dim() < 3:
            rotated: tuple[torch.Tensor, torch.Tensor | None] = kernel(layer, positions, query, key)
            return rotated
        flat = kernel(layer, positions, query.flatten(1), None if key is None else key.flatten(1))
        return flat[0].view_as(query), None if key is None else flat[1].view_as(key)

    compat.RotaryEmbedding.forward_cpu = forward_cpu
