"""Checkpoints of small random targets with MTP layers, in the published layouts.

The next token is mostly a function of the newest one: the layers change the embeddings little. The
MTP layer has learned the same, so a good part of its drafts is accepted. Each draft still depends
on the target's hidden states and on the layer's KV.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.engine_adapter.proposers.heads import Heads, Tensors

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_SIZE, LAYERS = 64, 96, 2, 1, 32, 2
EXPERTS, EXPERT_INNER = 4, 32
CONVOLUTION = 4
LATENT, ROPE, NOPE, QUERY_RANK = 512, 64, 32, 48
"""Of latent attention; vLLM's kernels for CPUs have no other sizes of the first two."""

MIX = 0.1
"""How much each layer adds to the embeddings."""

FROM_STATE = 0.08
"""How much of an MTP layer's input comes from the target's state; the rest is the token."""

BASE: Mapping[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_SIZE,
    "num_hidden_layers": LAYERS,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""The fields that all of them have."""

ROUTED: Mapping[str, Any] = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": EXPERT_INNER,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
"""Experts after a dense layer, and one for every token."""


@dataclass
class _Draw:
    """Random tensors, the same for the same seed."""

    seed: int
    tensors: Tensors = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def matrix(self, name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        drawn = torch.randn(rows, columns, generator=self._generator)
        self.tensors[name] = drawn * scale * columns**-0.5

    def vector(self, name: str, size: int, mean: float, spread: float = 0.2) -> None:
        self.tensors[name] = mean + torch.randn(size, generator=self._generator) * spread

    def norms(self, *names: str) -> None:
        for name in names:
            self.vector(f"{name}.weight", HIDDEN, 1.0)

    def projection(self, name: str, *, state_first: bool) -> None:
        """The matrix [H, 2H] over the embedding and the target's state."""
        self.matrix(name, HIDDEN, HIDDEN, FROM_STATE)
        from_state, from_token = self.tensors[name], torch.eye(HIDDEN)
        parts = [from_state, from_token] if state_first else [from_token, from_state]
        self.tensors[name] = torch.cat(parts, dim=1)

    def attention(self, prefix: str, *, bias: bool) -> None:
        for part, heads in ("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS):
            size = heads * HEAD_SIZE
            self.matrix(f"{prefix}.self_attn.{part}_proj.weight", size, HIDDEN, 2.0)
            if bias:
                self.vector(f"{prefix}.self_attn.{part}_proj.bias", size, 0.0)
        self.matrix(f"{prefix}.self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_SIZE, MIX)

    def latent_attention(self, prefix: str) -> None:
        """Queries from a small vector, keys and values from the latent states."""
        attention, width = f"{prefix}.self_attn", NOPE + ROPE
        self.matrix(f"{attention}.q_a_proj.weight", QUERY_RANK, HIDDEN)
        self.vector(f"{attention}.q_a_layernorm.weight", QUERY_RANK, 1.0)
        self.matrix(f"{attention}.q_b_proj.weight", HEADS * width, QUERY_RANK, 2.0)
        self.matrix(f"{attention}.kv_a_proj_with_mqa.weight", LATENT + ROPE, HIDDEN, 2.0)
        self.vector(f"{attention}.kv_a_layernorm.weight", LATENT, 1.0)
        self.matrix(f"{attention}.kv_b_proj.weight", HEADS * (NOPE + HEAD_SIZE), LATENT, 2.0)
        self.matrix(f"{attention}.o_proj.weight", HIDDEN, HEADS * HEAD_SIZE, MIX)

    def mlp(self, prefix: str, inner: int = INNER) -> None:
        for part in "gate", "up":
            self.matrix(f"{prefix}.{part}_proj.weight", inner, HIDDEN)
        self.matrix(f"{prefix}.down_proj.weight", HIDDEN, inner, MIX)

    def experts(self, prefix: str, *, correction: str, shape: tuple[int, ...]) -> None:
        self.matrix(f"{prefix}.gate.weight", EXPERTS, HIDDEN)
        self.vector(f"{prefix}.{correction}", EXPERTS, 0.0, 0.01)
        tensor = self.tensors[f"{prefix}.{correction}"]
        self.tensors[f"{prefix}.{correction}"] = tensor.reshape(shape)
        for name in (*(f"experts.{i}" for i in range(EXPERTS)), "shared_experts"):
            self.mlp(f"{prefix}.{name}", EXPERT_INNER)

    def block(self, prefix: str, *, bias: bool, mlp: Callable[[str], None]) -> None:
        """A decoder layer."""
        self.attention(prefix, bias=bias)
        mlp(f"{prefix}.mlp")
        self.norms(f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")

    def gated_experts(self, prefix: str) -> None:
        """Experts, and one for every token that has a gate of its own."""
        self.matrix(f"{prefix}.gate.weight", EXPERTS, HIDDEN)
        self.matrix(f"{prefix}.shared_expert_gate.weight", 1, HIDDEN)
        for name in (*(f"experts.{i}" for i in range(EXPERTS)), "shared_expert"):
            self.mlp(f"{prefix}.{name}", EXPERT_INNER)

    def gated_delta(self, prefix: str) -> None:
        """A decoder layer with a gated delta network instead of attention."""
        keys, values = 2 * KV_HEADS * HEAD_SIZE, HEADS * HEAD_SIZE
        network = f"{prefix}.linear_attn"
        self.matrix(f"{network}.in_proj_qkvz.weight", keys + 2 * values, HIDDEN)
        self.matrix(f"{network}.in_proj_ba.weight", 2 * HEADS, HIDDEN)
        self.matrix(f"{network}.out_proj.weight", HIDDEN, values, MIX)
        self.vector(name := f"{network}.conv1d.weight", (keys + values) * CONVOLUTION, 0.5)
        self.tensors[name] = self.tensors[name].reshape(-1, 1, CONVOLUTION)
        self.vector(f"{network}.norm.weight", HEAD_SIZE, 1.0)
        self.vector(f"{network}.dt_bias", HEADS, 0.0)
        self.vector(f"{network}.A_log", HEADS, 0.0)
        self.gated_experts(f"{prefix}.mlp")
        self.norms(f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")

    def following_layer(self, prefix: str) -> None:
        """What an MTP layer has that follows the target's layers, with copies of both ends."""
        self.norms(*(f"{prefix}.{name}" for name in ("enorm", "hnorm", "shared_head.norm")))
        self.projection(f"{prefix}.eh_proj.weight", state_first=False)
        self.tensors |= {
            f"{prefix}.embed_tokens.weight": self.tensors["model.embed_tokens.weight"].clone(),
            f"{prefix}.shared_head.head.weight": self.tensors["lm_head.weight"].clone(),
        }

    def ends(self, vocabulary: int) -> None:
        """Embeddings, final norm and output layer."""
        self.matrix("model.embed_tokens.weight", vocabulary, HIDDEN, HIDDEN**0.5)
        self.norms("model.norm")
        self.matrix("lm_head.weight", vocabulary, HIDDEN, 4.0)


def mimo(*, vocabulary: int = 2048, layers: int = 1, seed: int = 0) -> Heads:
    """`XiaomiMiMo/MiMo-7B-*`: Qwen2 layers, and MTP layers beside them.

    The published `model_type` needs code from the hub; its configuration is Qwen2's.
    """
    draw = _Draw(seed)
    draw.ends(vocabulary)
    for i in range(LAYERS):
        draw.block(f"model.layers.{i}", bias=True, mlp=draw.mlp)
    for i in range(layers):
        prefix = f"model.mtp_layers.{i}"
        draw.block(prefix, bias=True, mlp=draw.mlp)
        norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
        draw.norms(*(f"{prefix}.{name}" for name in norms))
        draw.projection(f"{prefix}.input_proj.weight", state_first=True)
    config = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "vocab_size": vocabulary}
    return Heads({**BASE, **config, "num_nextn_predict_layers": layers}, draw.tensors)


def agreeing_mimo(*, vocabulary: int = 2048, seed: int = 0) -> Heads:
    """The same with layers that add nothing: the MTP layer has the target's own logits."""
    made = mimo(vocabulary=vocabulary, seed=seed)
    tensors, layer = made.tensors, "model.mtp_layers.0"
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = torch.zeros_like(tensors[name])
    tensors[f"{layer}.input_proj.weight"] = torch.eye(HIDDEN, 2 * HIDDEN).roll(HIDDEN, dims=1)
    tensors[f"{layer}.token_layernorm.weight"] = torch.ones(HIDDEN)
    tensors[f"{layer}.final_layernorm.weight"] = tensors["model.norm.weight"].clone()
    return made


def ernie(*, vocabulary: int = 2048, seed: int = 0) -> Heads:
    """`baidu/ERNIE-4.5-21B-A3B-*`: layers of experts after a dense one, and a dense MTP layer."""
    draw = _Draw(seed)
    draw.ends(vocabulary)

    def experts(prefix: str) -> None:
        correction = "moe_statics.e_score_correction_bias"
        draw.experts(prefix, correction=correction, shape=(1, EXPERTS))

    for i in range(LAYERS):
        draw.block(f"model.layers.{i}", bias=False, mlp=experts if i else draw.mlp)
    draw.block("model.mtp_block.0", bias=False, mlp=draw.mlp)
    draw.norms("model.mtp_emb_norm.0", "model.mtp_hidden_norm.0")
    draw.projection("model.mtp_linear_proj.0.weight", state_first=False)
    config = {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "vocab_size": vocabulary,
        "moe_intermediate_size": EXPERT_INNER,
        "moe_num_experts": EXPERTS,
        "moe_num_shared_experts": 1,
        "moe_k": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": LAYERS - 1,
        "moe_layer_interval": 1,
        "use_bias": False,
    }
    return Heads({**BASE, **config}, draw.tensors)


def glm4_moe(*, vocabulary: int = 2048, layers: int = 1, seed: int = 0) -> Heads:
    """`zai-org/GLM-4.5*`: the MTP layers follow the target's, with copies of both ends."""
    draw = _Draw(seed)
    draw.ends(vocabulary)

    def experts(prefix: str) -> None:
        draw.experts(prefix, correction="gate.e_score_correction_bias", shape=(EXPERTS,))

    for i in range(LAYERS + layers):
        draw.block(f"model.layers.{i}", bias=True, mlp=experts if i else draw.mlp)
    for i in range(LAYERS, LAYERS + layers):
        draw.following_layer(f"model.layers.{i}")
    config = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": vocabulary,
        "attention_bias": True,
        "use_qk_norm": False,
        "partial_rotary_factor": 0.5,
        **ROUTED,
        "num_nextn_predict_layers": layers,
    }
    return Heads({**BASE, **config}, draw.tensors)


def latent(
    architecture: str, model_type: str, *, vocabulary: int = 2048, layers: int = 1, seed: int = 0
) -> Heads:
    """Latent attention, experts after a dense layer, and MTP layers as in GLM 4.5."""
    draw = _Draw(seed)
    draw.ends(vocabulary)
    for i in range(LAYERS + layers):
        prefix = f"model.layers.{i}"
        draw.latent_attention(prefix)
        if i:
            correction = "gate.e_score_correction_bias"
            draw.experts(f"{prefix}.mlp", correction=correction, shape=(EXPERTS,))
        else:
            draw.mlp(f"{prefix}.mlp")
        draw.norms(f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    for i in range(LAYERS, LAYERS + layers):
        draw.following_layer(f"model.layers.{i}")
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": vocabulary,
        "kv_lora_rank": LATENT,
        "q_lora_rank": QUERY_RANK,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": HEAD_SIZE,
        "head_dim": ROPE,
        "num_key_value_heads": HEADS,
        **ROUTED,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": layers,
    }
    return Heads({**BASE, **config}, draw.tensors)


def deepseek_v3(**options: Any) -> Heads:
    """`deepseek-ai/DeepSeek-V3`, R1 and V3.1."""
    return latent("DeepseekV3ForCausalLM", "deepseek_v3", **options)


def glm4_moe_lite(**options: Any) -> Heads:
    """`zai-org/GLM-4.7-Flash`."""
    return latent("Glm4MoeLiteForCausalLM", "glm4_moe_lite", **options)


def qwen3_next(*, vocabulary: int = 2048, seed: int = 0) -> Heads:
    """`Qwen/Qwen3-Next-80B-A3B-*`: a gated delta network before a layer of attention, and experts.

    The attention has a gate, and norms are stored as their difference from 1.
    """
    draw = _Draw(seed)
    draw.ends(vocabulary)
    draw.gated_delta("model.layers.0")
    for prefix in "model.layers.1", "mtp.layers.0":
        draw.block(prefix, bias=False, mlp=draw.gated_experts)
        attention = f"{prefix}.self_attn"
        draw.matrix(f"{attention}.q_proj.weight", 2 * HEADS * HEAD_SIZE, HIDDEN, 2.0)
        for part in "q", "k":
            draw.vector(f"{attention}.{part}_norm.weight", HEAD_SIZE, 0.0)
    draw.norms("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
    draw.projection("mtp.fc.weight", state_first=False)
    for name in draw.tensors:
        if "norm" in name and "linear_attn" not in name and "self_attn" not in name:
            draw.tensors[name] -= 1
    config = {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "vocab_size": vocabulary,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": KV_HEADS,
        "linear_num_value_heads": HEADS,
        "linear_key_head_dim": HEAD_SIZE,
        "linear_value_head_dim": HEAD_SIZE,
        "linear_conv_kernel_dim": CONVOLUTION,
        "moe_intermediate_size": EXPERT_INNER,
        "shared_expert_intermediate_size": EXPERT_INNER,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
    }
    config = {**BASE, **config}
    del config["num_nextn_predict_layers"]  # the published configuration does not tell
    return Heads(config, draw.tensors)


TARGETS: Mapping[str, Callable[..., Heads]] = {
    "mimo": mimo,
    "ernie": ernie,
    "glm4_moe": glm4_moe,
    "qwen3_next": qwen3_next,
    "deepseek_v3": deepseek_v3,
    "glm4_moe_lite": glm4_moe_lite,
}
"""Each family that `mtp` supports."""


def write_target(target: Heads, folder: Path, tokenizer: Path) -> str:
    """Writes a target with the tokenizer of the model in another folder; returns its path."""
    target.write(folder)
    for file in tokenizer.glob("tokenizer*"):
        shutil.copy(file, folder)
    return str(folder)


def own_bytes(folder: Path) -> int:
    """The bytes of the MTP layers in a target's folder, without copies of the target's ends."""
    fields = json.loads((folder / "config.json").read_text())
    first = fields["num_hidden_layers"]
    names = [f"layers.{first + i}." for i in range(fields.get("num_nextn_predict_layers", 1))]
    tensors = load_file(folder / "model.safetensors")
    return sum(
        tensor.nbytes
        for name, tensor in tensors.items()
        if ("mtp" in name or any(layer in name for layer in names))
        and "embed_tokens" not in name
        and "shared_head.head" not in name
    )
