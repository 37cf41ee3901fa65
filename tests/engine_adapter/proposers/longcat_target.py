"""A small random LongCat-Flash with its MTP layer, in the layout that is published.

A layer of LongCat has two of attention and two dense MLPs, and experts beside them, of which some
compute nothing. The MTP layer has one of attention and one MLP.
"""

from collections.abc import Callable
from typing import Any

import torch

from tests.engine_adapter.proposers.heads import Heads, Tensors
from tests.engine_adapter.proposers.mtp_layout import LATENT_SIZES

ZERO_EXPERTS, EXPERTS = 2, 4

FIELDS: dict[str, Any] = {
    "num_layers": 1,
    "ffn_hidden_size": 96,
    "expert_ffn_hidden_size": 32,
    "moe_topk": 2,
    "n_routed_experts": EXPERTS,
    "zero_expert_num": ZERO_EXPERTS,
    "routed_scaling_factor": 1.0,
    **LATENT_SIZES,
}
"""Of the configuration, beside what all targets have."""

PUBLISHED: dict[str, Any] = {
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "zero_expert_type": "identity",
}
"""What transformers takes for granted."""

_LAYER, _OWN = "model.layers.0.", "model.mtp.layers.0."
_PARTS = {
    "self_attn.0.": "self_attn.",
    "mlps.0.": "transformer_layer.mlp.",
    "input_layernorm.0.": "input_layernorm.",
    "post_attention_layernorm.0.": "post_attention_layernorm.",
}
"""Beginning of a name in the target's layer -> in the MTP layer."""


def with_mtp_layer(
    config: dict[str, Any],
    target: Tensors,
    redraw: Callable[[str, torch.Tensor], torch.Tensor],
    projection: torch.Tensor,
) -> Heads:
    """The target with an MTP layer.

    Args:
        config, target: as transformers writes it.
        redraw: draws a tensor of a name again.
        projection: [H, 2H], over embedding and state.
    """
    tensors = {name: tensor for name, tensor in target.items() if not _is_of_zero_expert(name)}
    for name, tensor in target.items():
        for part, own_part in _PARTS.items():
            if name.startswith(_LAYER + part):
                own_name = _OWN + own_part + name.removeprefix(_LAYER + part)
                tensors[own_name] = redraw(name, tensor)
    norm = target["model.norm.weight"]
    tensors |= {
        f"{_OWN}eh_proj.weight": projection,
        f"{_OWN}enorm.m.weight": redraw("norm", norm),
        f"{_OWN}hnorm.m.weight": redraw("norm", norm),
        "model.mtp.norm.weight": redraw("norm", norm),
        "model.mtp.embed_tokens.weight": target["model.embed_tokens.weight"].clone(),
    }
    return Heads(config | PUBLISHED, tensors)


def for_transformers(target: Heads) -> Heads:
    """The target with weights of the experts that have none: transformers reads, and ignores them.

    vLLM refuses them.
    """
    tensors = dict(target.tensors)
    for name, tensor in target.tensors.items():
        if ".experts.0." in name and "down_proj" not in name:
            tensors |= {
                name.replace(".experts.0.", f".experts.{EXPERTS + i}."): torch.zeros_like(tensor)
                for i in range(ZERO_EXPERTS)
            }
    return Heads(target.config, tensors)


def _is_of_zero_expert(name: str) -> bool:
    return any(f".experts.{EXPERTS + i}." in name for i in range(ZERO_EXPERTS))
