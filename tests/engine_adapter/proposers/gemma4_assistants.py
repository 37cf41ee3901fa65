"""Small random targets of Gemma 4, and assistants that draft for them.

As in `mtp_targets`, the next token is mostly a function of the newest one, for both, so a good part
of the drafts is accepted.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.mtp_layout import BASE, saved

VOCABULARY = 2048
SLIDING, FULL = "sliding_attention", "full_attention"

FROM_STATE = 0.02
"""How much of the assistant's input comes from the target's state; the rest is the token."""

MIX = 0.1
"""How much attention, and the layers after it, add to the embeddings."""

CENTROIDS = 32
"""Parts of the vocabulary of an assistant that has parts."""

_TEXT: Mapping[str, Any] = {
    **BASE,
    "global_head_dim": 64,
    "sliding_window": 64,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "tie_word_embeddings": True,
}

_SAME = (
    *("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("sliding_window", "max_position_embeddings"),
)
"""The fields of a target that its assistant has too."""


def gemma4_target(*, vocabulary: int = VOCABULARY, num_shared: int = 0, seed: int = 0) -> Heads:
    """A target with windows; its last `num_shared` layers read the KV of another layer."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    kinds = [SLIDING, FULL, SLIDING, FULL]
    fields: dict[str, Any] = {
        **_TEXT,
        "vocab_size": vocabulary,
        "layer_types": kinds,
        "num_hidden_layers": len(kinds),
        "num_kv_shared_layers": num_shared,
        "tie_word_embeddings": False,
    }
    return _checkpoint(Gemma4ForCausalLM(Gemma4TextConfig(**fields)), seed)


def assistant(target: Heads, *, centroids: int | None = None, seed: int = 0) -> Heads:
    """An assistant of two layers for this target.

    Args:
        target: the fields of its text model, and its output layer.
        centroids: in how many parts of the vocabulary, of `CENTROIDS`, it looks for a draft; `None`
            if it has no parts.
    """
    from transformers import (
        Gemma4AssistantConfig,
        Gemma4AssistantForCausalLM,
        Gemma4TextConfig,
    )

    fields, hidden = target.config, target.config["hidden_size"]
    full_layer = next(iter((fields.get("per_layer_config") or {}).values()), {})
    text: dict[str, Any] = {
        **_TEXT,
        **{name: fields[name] for name in _SAME},
        "global_head_dim": full_layer.get("head_dim", fields["head_dim"]),
        "layer_types": [SLIDING, FULL],
        "num_hidden_layers": 2,
    }
    config = Gemma4AssistantConfig(
        text_config=Gemma4TextConfig(**text),
        backbone_hidden_size=hidden,
        num_centroids=CENTROIDS,
    )
    heads = _checkpoint(Gemma4AssistantForCausalLM(config), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    from_state = torch.randn(hidden, hidden, generator=generator) * FROM_STATE
    heads.tensors["pre_projection.weight"] = torch.cat([torch.eye(hidden), from_state], 1)
    heads.tensors["model.embed_tokens.weight"] = target.tensors["lm_head.weight"].clone()
    if centroids is not None:
        heads.config |= {
            "use_ordered_embeddings": True,
            "centroid_intermediate_top_k": centroids,
        }
        order = torch.randperm(target.config["vocab_size"], generator=generator)
        heads.tensors |= {
            "masked_embedding.centroids.weight": torch.randn(
                CENTROIDS, hidden, generator=generator
            ),
            "masked_embedding.token_ordering": order,
        }
    return heads


def _checkpoint(model: Any, seed: int) -> Heads:
    """The checkpoint of a model of transformers with other weights."""
    config, tensors = saved(model.to(torch.float32))
    generator = torch.Generator().manual_seed(seed)
    return Heads(config, {name: _drawn(name, tensors[name], generator) for name in sorted(tensors)})


def _drawn(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random weights, or a random norm; other tensors as they are."""
    if not tensor.is_floating_point() or tensor.numel() == 1:
        return tensor
    noise = torch.randn(tensor.shape, generator=generator)
    if tensor.dim() == 1:
        # These scale what a layer adds to the embeddings.
        mean = MIX if ".post_" in name else 1.0
        return mean * (1 + 0.2 * noise)
    scale = 4.0 if name == "lm_head.weight" else 1.0
    return noise * scale * tensor.shape[-1] ** -0.5
