"""The keys of a DFlash head's context on a CPU: each layer's own norm."""

from functools import partial
from typing import Any

import torch


def patch_context_norms(model: Any) -> None:
    """Replaces how a loaded head normalizes the keys of its context.

    vLLM gives one kernel the weights of all layers. The CPU's kernel takes the first layer's for
    all of them, so the drafts of a head with several layers are wrong there.

    Args:
        model: the decoder inside vLLM's head.
    """
    model._normalize_context_k = partial(normalized_by_layer, model)


def normalized_by_layer(model: Any, keys: torch.Tensor) -> torch.Tensor:
    """RMS-normalized keys [L, T, heads, head size], each layer with its own weights."""
    keys_f32 = keys.float()
    scale = torch.rsqrt(keys_f32.square().mean(-1, keepdim=True) + model._rms_norm_eps)
    normalized: torch.Tensor = (keys_f32 * scale).to(keys.dtype) * model._k_norm_weights[
        :, None, None
    ]
    return normalized
