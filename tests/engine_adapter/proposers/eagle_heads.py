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


def latent_eagle3(config: dict[str, Any], *, aux_layers: Sequence[int], seed: int = 0) -> Heads:
    """An EAGLE-3 head with latent attention, for a target that has such attention."""
    heads = eagle3(config | {"head_dim": 1}, aux_layers=aux_layers, first="layers.0.", seed=seed)
    hidden, count = config["hidden_size"], config["num_attention_heads"]
    rotated, plain = config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    latent, values, rank = config["kv_lora_rank"], config["v_head_dim"], config["q_lora_rank"]
    shapes: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa": (latent + rotated, 2 * hidden),
        "kv_b_proj": (count * (plain + values), latent),
        "o_proj": (hidden, count * values),
        "q_a_proj": (rank, 2 * hidden),
        "q_b_proj": (count * (plain + rotated), rank),
    }
    attention = "layers.0.self_attn."
    heads.tensors = {
        name: tensor for name, tensor in heads.tensors.items() if not name.startswith(attention)
    }
    for i, (name, shape) in enumerate(shapes.items()):
        heads.tensors[f"{attention}{name}.weight"] = _random(seed + 60 + i, *shape)
    for name, size in (("kv_a_layernorm", latent), ("q_a_layernorm", rank)):
        heads.tensors[f"{attention}{name}.weight"] = 1 + _random(seed + 70, size)
    heads.config = config | {
        **{name: heads.config[name] for name in ("num_hidden_layers", "dtype", "eagle_config")},
        **{name: heads.config[name] for name in ("draft_vocab_size", "tie_word_embeddings")},
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
    }
    return heads


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
