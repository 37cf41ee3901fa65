"""Small random models in which recurrent layers and attention alternate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.engine_adapter.vllm_engine.support.window_models import write_random_model

_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_d_state": 32,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_chunk_size": 32,
}

HYBRIDS: Mapping[str, dict[str, Any]] = {
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 256},
    "granitemoehybrid": _MAMBA
    | {
        "layer_types": ["mamba", "attention"] * 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 192,
        "position_embedding_type": "rope",
    },
}
"""Model type -> its fields. Each model has four layers."""

MISTAKEN: Mapping[str, dict[str, Any]] = {
    "lfm2": {
        "layer_types": ["conv", "full_attention"] * 2,
        "block_auto_adjust_ff_dim": False,
        "conv_dim": 128,
        "block_dim": 128,
    },
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "mlp_only_layers": [0, 1, 2],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
}
"""The same for models for which stock vLLM cannot be the reference on a CPU.

Its rotary embedding of LFM 2 is wrong, and its kernels for Qwen3-Next and 3.5 need bfloat16.
"""


def random_hybrid(folder: Path, model_type: str, seed: int = 0) -> str:
    """A random model of an architecture with the demo's tokenizer."""
    fields = {"num_hidden_layers": 4} | {**HYBRIDS, **MISTAKEN}[model_type]
    # The output layer of LFM 2 has the weights of its embeddings.
    embeddings = 0.3 if model_type == "lfm2" else 0.05
    return write_random_model(folder, model_type, fields, seed, 1.0, embeddings)
