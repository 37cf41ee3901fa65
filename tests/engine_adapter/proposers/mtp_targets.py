"""Checkpoints of small random targets with MTP layers, in the published layouts."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.engine_adapter.proposers import longcat_target
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.mtp_layout import (
    BASE,
    HIDDEN,
    LATENT_SIZES,
    NUM_LAYERS,
    OUTPUTS,
    Layout,
    drawn,
    layout,
)
from tests.engine_adapter.proposers.step_target import step3_5

HEAD: dict[str, Any] = {
    **BASE,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}
"""The configuration of an EAGLE head for one of these targets."""

_EXPERTS: Mapping[str, Any] = {
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
_ROUTED: Mapping[str, Any] = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.0,
}
"""Experts after a dense layer, and one for every token."""

_DELTA: Mapping[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 32,
    **_EXPERTS,
}
"""A gated delta network before a layer of attention."""

_LATENT: Mapping[str, Any] = {**_ROUTED, **LATENT_SIZES}
_WINDOWS: Mapping[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 64,
}
_IN_COMMON = "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"


def _in_common(model_type: str, block: int, fields: Mapping[str, Any], **how: Any) -> Layout:
    """A layout whose MTP layers have the projection and the norms in common."""
    modules = "mtp.layers.{i}", "fc", *_IN_COMMON
    return layout(model_type, block, *modules, common="mtp", fields=fields, **how)


def _following(model_type: str, fields: Mapping[str, Any], **how: Any) -> Layout:
    """A layout whose MTP layers follow the target's, with copies of both ends."""
    norms = "enorm", "hnorm", "shared_head.norm"
    return layout(
        *(model_type, 1, "model.layers.{n}", "eh_proj", *norms), has_ends=True, fields=fields, **how
    )


# `XiaomiMiMo/MiMo-7B-*`: Qwen2 layers. The published `model_type` needs code from the hub; its
# configuration is Qwen2's.
mimo = layout(
    "qwen2",
    0,
    "model.mtp_layers.{i}",
    "input_proj",
    *("token_layernorm", "hidden_layernorm", "final_layernorm"),
    state_first=True,
    published={"architectures": ["MiMoForCausalLM"]},
)
# `zai-org/GLM-4.5*`.
glm4_moe = _following("glm4_moe", {**_ROUTED, "attention_bias": True, "partial_rotary_factor": 0.5})

# `zai-org/GLM-OCR`.
glm_ocr_layer = layout(
    "glm_ocr",
    1,
    "model.language_model.layers.{n}",
    "eh_proj",
    *("enorm", "hnorm", "shared_head.norm"),
    begin="model.language_model.",
)


def longcat(*, vocabulary: int = 2048, seed: int = 0) -> Heads:
    """`meituan-longcat/LongCat-Flash-*`, with the one MTP layer that it has."""
    layout = Layout("longcat_flash", longcat_target.FIELDS, "", "", "", ())
    generator = torch.Generator().manual_seed(seed + 1)
    return longcat_target.with_mtp_layer(
        *layout.plain_target(vocabulary, seed),
        lambda name, tensor: drawn(name, tensor, generator),
        layout.new_projection(HIDDEN, generator),
    )


# `Qwen/Qwen3.5-*`, dense ones.
qwen3_5 = _in_common("qwen3_5_text", 1, _DELTA, num_layers="mtp_num_hidden_layers")

# `XiaomiMiMo/MiMo-V2-Flash`: a dense MTP layer with the window.
mimo_v2_flash = layout(
    "mimo_v2_flash",
    0,
    "model.mtp.layers.{i}",
    "eh_proj",
    *("enorm", "hnorm", "final_layernorm"),
    fields={
        **_WINDOWS,
        **_ROUTED,
        "hybrid_layer_pattern": [1, 0],
        "moe_layer_freq": [0, 1],
        "sliding_window_size": 64,
        "v_head_dim": 32,
        "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 32,
        "swa_v_head_dim": 32,
        "add_swa_attention_sink_bias": True,
        "layernorm_epsilon": 1e-5,
    },
    renames={"post_attention_layernorm": "pre_mlp_layernorm"},
    # transformers writes these by kind of layer.
    published={"rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334},
    num_layers=None,
)


def mimo_v2(**how: Any) -> Heads:
    """`XiaomiMiMo/MiMo-V2.5*`: each layer of attention has one matrix for all that it reads."""
    target = mimo_v2_flash(**how)
    tensors = dict(target.tensors)
    for name in target.tensors:
        if name.endswith(".q_proj.weight"):
            parts = [name.replace(".q_proj.", f".{part}_proj.") for part in "qkv"]
            fused = name.replace(".q_proj.", ".qkv_proj.")
            tensors[fused] = torch.cat([tensors.pop(part) for part in parts])
    return Heads(target.config | {"architectures": ["MiMoV2ForCausalLM"]}, tensors)


TARGETS: Mapping[str, Callable[..., Heads]] = {
    "mimo": mimo,
    # `baidu/ERNIE-4.5-21B-A3B-*`: layers of experts after a dense one, and a dense MTP layer.
    "ernie": Layout(
        "ernie4_5_moe",
        {
            "moe_intermediate_size": 32,
            "moe_num_experts": 4,
            "moe_num_shared_experts": 1,
            "moe_k": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
            "moe_layer_interval": 1,
            "use_bias": False,
        },
        "model.layers.0.",
        "model.mtp_block.{i}.",
        "model.mtp_linear_proj.{i}.weight",
        ("model.mtp_emb_norm.{i}.weight", "model.mtp_hidden_norm.{i}.weight"),
    ),
    "glm4_moe": glm4_moe,
    # `Qwen/Qwen3-Next-80B-A3B-*`, whose configuration does not tell that it has an MTP layer.
    "qwen3_next": _in_common("qwen3_next", 1, _DELTA, num_layers=None),
    "qwen3_5": qwen3_5,
    # Those with experts.
    "qwen3_5_moe": _in_common("qwen3_5_moe_text", 1, _DELTA, num_layers="mtp_num_hidden_layers"),
    # `deepseek-ai/DeepSeek-V3`, R1 and V3.1.
    "deepseek_v3": _following(
        "deepseek_v3", _LATENT, published={"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    ),
    # `zai-org/GLM-4.7-Flash`.
    "glm4_moe_lite": _following("glm4_moe_lite", _LATENT),
    # `LGAI-EXAONE/K-EXAONE-236B-A23B`: windows, and a dense MTP layer.
    "exaone_moe": _in_common(
        "exaone_moe", 0, {**_EXPERTS, **_WINDOWS, "sliding_window_pattern": None}
    ),
    # `tencent/Hy3`: experts after a dense layer.
    "hy_v3": layout(
        "hy_v3",
        1,
        "model.layers.{n}",
        "eh_proj",
        *("enorm", "hnorm", "final_layernorm"),
        fields={
            **_EXPERTS,
            "expert_hidden_dim": 32,
            "router_scaling_factor": 1.0,
            "route_norm": True,
            "qk_norm": True,
            "first_k_dense_replace": 1,
        },
    ),
    "mimo_v2_flash": mimo_v2_flash,
    "mimo_v2": mimo_v2,
    # `nvidia/NVIDIA-Nemotron-3-*`: Mamba 2. vLLM does not compute its experts on a CPU: their
    # activation has no gate, so this target has a dense layer in their place.
    "nemotron_h": layout(
        "nemotron_h",
        1,
        "mtp.layers.{i}",
        "eh_proj",
        *("enorm", "hnorm", "final_layernorm"),
        begin="backbone.",
        fields={
            "layers_block_type": ["linear_attention", "full_attention", "mlp"],
            "num_hidden_layers": 3,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
        },
        published={"mtp_hybrid_override_pattern": "*"},
    ),
    # `stepfun-ai/Step-3.5-Flash*`.
    "step3_5": step3_5,
    "longcat": longcat,
}
"""Each family that `mtp` supports."""


def agreeing_mimo(*, vocabulary: int = 2048, seed: int = 0) -> Heads:
    """MiMo with layers that add nothing: the MTP layer has the target's own logits."""
    target = mimo(vocabulary=vocabulary, seed=seed)
    tensors, layer = target.tensors, "model.mtp_layers.0"
    for name in tensors:
        if name.endswith(OUTPUTS):
            tensors[name] = torch.zeros_like(tensors[name])
    tensors[f"{layer}.input_proj.weight"] = torch.eye(HIDDEN, 2 * HIDDEN).roll(HIDDEN, dims=1)
    tensors[f"{layer}.token_layernorm.weight"] = torch.ones(HIDDEN)
    tensors[f"{layer}.final_layernorm.weight"] = tensors["model.norm.weight"].clone()
    return target


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
    names = [f"layers.{first + i}." for i in range(fields.get(NUM_LAYERS, 1))]
    tensors = load_file(folder / "model.safetensors")
    return sum(
        tensor.nbytes
        for name, tensor in tensors.items()
        if ("mtp" in name or any(layer in name for layer in names))
        and "embed_tokens" not in name
        and "shared_head.head" not in name
    )
