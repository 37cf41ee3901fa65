"""Checkpoints of random DFlash heads, in the layout that is published."""

from collections.abc import Sequence
from typing import Any

import torch

from tests.engine_adapter.proposers.heads import Heads, Tensors

MASK_TOKEN = 3


def dflash(
    config: dict[str, Any],
    *,
    target_layers: Sequence[int],
    layers: int = 2,
    block_size: int = 8,
    seed: int = 0,
) -> Heads:
    """A DFlash head for a target of the given `config.json`; both ends are the target's."""
    generator = torch.Generator().manual_seed(1000 + seed)
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    def norm(width: int) -> torch.Tensor:
        return 1 + torch.randn(width, generator=generator) * 0.3

    tensors: Tensors = {
        "fc.weight": matrix(hidden, len(target_layers) * hidden),
        "hidden_norm.weight": norm(hidden),
        "norm.weight": norm(hidden),
    }
    for i in range(layers):
        parts = {
            "self_attn.q_proj": matrix(queries, hidden) * 2,
            "self_attn.k_proj": matrix(keys, hidden) * 2,
            "self_attn.v_proj": matrix(keys, hidden) * 2,
            "self_attn.o_proj": matrix(hidden, queries) * 2,
            "self_attn.q_norm": norm(size),
            "self_attn.k_norm": norm(size),
            "mlp.gate_proj": matrix(inner, hidden),
            "mlp.up_proj": matrix(inner, hidden),
            "mlp.down_proj": matrix(hidden, inner),
            "input_layernorm": norm(hidden),
            "post_attention_layernorm": norm(hidden),
        }
        tensors |= {f"layers.{i}.{name}.weight": tensor for name, tensor in parts.items()}
    ours = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "max_window_layers": layers,
        "dtype": "float32",
        "block_size": block_size,
        "num_target_layers": config["num_hidden_layers"],
        "dflash_config": {"mask_token_id": MASK_TOKEN, "target_layer_ids": list(target_layers)},
    }
    return Heads(config | ours, tensors)


def with_sinks(head: Heads) -> Heads:
    """The head, changed: each layer has an attention sink of each of its heads."""
    head.config["dflash_config"]["attention_sink_bias"] = True
    for i in range(head.config["num_hidden_layers"]):
        sinks = torch.linspace(-1, 3, head.config["num_attention_heads"])
        head.tensors[f"layers.{i}.self_attn.attention_sink_bias"] = sinks
    return head
