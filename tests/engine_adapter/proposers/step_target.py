"""A small random Step 3.5 with MTP layers, in the layout that is published.

transformers has no class for it. It has a layer of full attention with a dense MLP, and one with a
window and experts; MTP layers are dense, with a window and an output layer of their own each.
"""

from typing import Any

import torch

from tests.engine_adapter.proposers.heads import Heads, Tensors
from tests.engine_adapter.proposers.mtp_layout import FROM_STATE, HIDDEN, MIX

_INNER, _EXPERT, _SIZE, _KV_HEADS, _EXPERTS = 96, 32, 32, 2, 4
_FULL_HEADS, _WINDOW_HEADS = 4, 6
_LAYERS = 2


class _Weights:
    """Draws tensors one after the other."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator) * scale * shape[-1] ** -0.5

    def norm(self, width: int) -> torch.Tensor:
        """vLLM adds 1 to it."""
        return torch.randn(width, generator=self._generator) * 0.2

    def attention(self, heads: int) -> Tensors:
        kv = _KV_HEADS * _SIZE
        return {
            "self_attn.q_proj.weight": self.matrix(heads * _SIZE, HIDDEN, scale=2),
            "self_attn.k_proj.weight": self.matrix(kv, HIDDEN, scale=2),
            "self_attn.v_proj.weight": self.matrix(kv, HIDDEN, scale=2),
            "self_attn.o_proj.weight": self.matrix(HIDDEN, heads * _SIZE, scale=MIX),
            "self_attn.g_proj.weight": self.matrix(heads, HIDDEN),
            "self_attn.q_norm.weight": self.norm(_SIZE),
            "self_attn.k_norm.weight": self.norm(_SIZE),
            "input_layernorm.weight": self.norm(HIDDEN),
            "post_attention_layernorm.weight": self.norm(HIDDEN),
        }

    def mlp(self, folder: str, inner: int) -> Tensors:
        return {
            f"{folder}.gate_proj.weight": self.matrix(inner, HIDDEN),
            f"{folder}.up_proj.weight": self.matrix(inner, HIDDEN),
            f"{folder}.down_proj.weight": self.matrix(HIDDEN, inner, scale=MIX),
        }

    def experts(self) -> Tensors:
        return {
            "moe.gate.weight": self.matrix(_EXPERTS, HIDDEN),
            "moe.router_bias": torch.zeros(_EXPERTS),
            "moe.gate_proj.weight": self.matrix(_EXPERTS, _EXPERT, HIDDEN),
            "moe.up_proj.weight": self.matrix(_EXPERTS, _EXPERT, HIDDEN),
            "moe.down_proj.weight": self.matrix(_EXPERTS, HIDDEN, _EXPERT, scale=MIX),
            **self.mlp("share_expert", _EXPERT),
        }


def layer_types(layers: int) -> list[str]:
    """The kinds of the target's layers and of so many MTP layers."""
    return ["full_attention", *["sliding_attention"] * (_LAYERS - 1 + layers)]


def step3_5(*, vocabulary: int = 2048, layers: int = 1, seed: int = 0) -> Heads:
    """A random target with this number of MTP layers."""
    weights = _Weights(seed)
    by_layer = [
        weights.attention(_FULL_HEADS) | weights.mlp("mlp", _INNER),
        weights.attention(_WINDOW_HEADS) | weights.experts(),
    ]
    tensors: Tensors = {
        "model.embed_tokens.weight": weights.matrix(vocabulary, HIDDEN, scale=HIDDEN**0.5),
        "model.norm.weight": weights.norm(HIDDEN),
        "lm_head.weight": weights.matrix(vocabulary, HIDDEN, scale=4),
    }
    for _ in range(layers):
        from_state = weights.matrix(HIDDEN, HIDDEN, scale=FROM_STATE)
        mtp_parts = {
            "enorm.weight": weights.norm(HIDDEN),
            "hnorm.weight": weights.norm(HIDDEN),
            "eh_proj.weight": torch.cat([torch.eye(HIDDEN), from_state], dim=1),
            "shared_head.norm.weight": weights.norm(HIDDEN),
            "shared_head.output.weight": tensors["lm_head.weight"].clone(),
        }
        by_layer.append(weights.attention(_WINDOW_HEADS) | weights.mlp("mlp", _INNER) | mtp_parts)
    for i, in_layer in enumerate(by_layer):
        tensors |= {f"model.layers.{i}.{name}": tensor for name, tensor in in_layer.items()}
    return Heads(_config(vocabulary, layers), tensors)


def _config(vocabulary: int, layers: int) -> dict[str, Any]:
    """The published fields. A CPU has kernels for experts with softmax alone, not with sigmoid."""
    return {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "hidden_size": HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_nextn_predict_layers": layers,
        "num_attention_heads": _FULL_HEADS,
        "num_attention_groups": _KV_HEADS,
        "head_dim": _SIZE,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": _WINDOW_HEADS,
            "num_attention_groups": _KV_HEADS,
            "head_dim": _SIZE,
        },
        "use_head_wise_attn_gate": True,
        "layer_types": layer_types(layers),
        "sliding_window": 64,
        "rope_theta": [10_000.0] * (_LAYERS + layers),
        "partial_rotary_factors": [0.5, *[1.0] * (_LAYERS - 1 + layers)],
        "max_position_embeddings": 2048,
        "moe_layers_enum": "1",
        "moe_num_experts": _EXPERTS,
        "moe_top_k": 2,
        "moe_intermediate_size": _EXPERT,
        "share_expert_dim": _EXPERT,
        "moe_router_activation": "softmax",
        "moe_router_scaling_factor": 1.0,
        "use_moe_router_bias": True,
        "need_fp32_gate": True,
        "norm_expert_weight": True,
        "swiglu_limits": [],
        "swiglu_limits_shared": [],
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
