"""Checkpoints of random EAGLE and EAGLE-3 heads, in the layouts that are published."""

from collections.abc import Sequence
from typing import Any

import torch

from tests.engine_adapter.proposers.heads import Heads, Tensors

AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"


def eagle(config: dict[str, Any], *, bias: bool = False, seed: int = 0) -> Heads:
    """An EAGLE head for a target of this `config.json`; the first ones had a `bias` in `fc`."""
    hidden = config["hidden_size"]
    tensors = _layer(config, "layers.0.", hidden, seed)
    del tensors["layers.0.input_layernorm.weight"]
    tensors["fc.weight"] = _random(seed + 50, hidden, 2 * hidden)
    if bias:
        tensors["fc.bias"] = _random(seed + 51, hidden)
    ours = {"num_hidden_layers": 1, "dtype": "float32", "bias": bias}
    return Heads(config | ours, tensors)


def eagle3(
    config: dict[str, Any],
    *,
    aux_layers: Sequence[int],
    draft_vocabulary: int | None = None,
    first: str = "midlayer.",
    seed: int = 0,
) -> Heads:
    """An EAGLE-3 head for a target of the given `config.json`, with an output layer of its own."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    drafted = draft_vocabulary or vocabulary
    tensors = _layer(config, first, 2 * hidden, seed) | {
        f"{first}hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
        "fc.weight": _random(seed + 50, hidden, len(aux_layers) * hidden),
        "lm_head.weight": _random(seed + 51, drafted, hidden),
    }
    if drafted != vocabulary:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randperm(vocabulary, generator=generator)[:drafted].sort().values
        tensors["d2t"] = ids - torch.arange(drafted)
        tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, ids, True)
    ours = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "dtype": "float32",
        "draft_vocab_size": drafted,
        "tie_word_embeddings": False,
        "eagle_config": {AUX_LAYERS: list(aux_layers)},
    }
    return Heads(config | ours, tensors)


def speculators_eagle3(config: dict[str, Any], *, aux_layers: Sequence[int]) -> Heads:
    """The same in the format of the library `speculators`."""
    heads = eagle3(config, aux_layers=aux_layers, first="layers.0.")
    layer = {key: value for key, value in heads.config.items() if key != "eagle_config"}
    heads.config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "the/target", "architectures": ["LlamaForCausalLM"]},
        },
        "draft_vocab_size": config["vocab_size"],
        "norm_before_residual": True,
        AUX_LAYERS: list(aux_layers),
        "transformer_layer_config": layer,
    }
    return heads


def _layer(config: dict[str, Any], prefix: str, width: int, seed: int) -> Tensors:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    matrices = {
        f"{prefix}{name}.weight": _random(seed + i, *shape)
        for i, (name, shape) in enumerate(shapes.items())
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    return matrices | {f"{prefix}{name}.weight": torch.ones(hidden) for name in norms}


def _random(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(*shape, generator=generator) * shape[-1] ** -0.5
