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


def random_hybrid(folder: Path, model_type: str, seed: int = 0) -> str:
    """A random model of an architecture with the demo's tokenizer."""
    fields = {"num_hidden_layers": 4} | HYBRIDS[model_type]
    return write_random_model(folder, model_type, fields, seed, scale=1.0)
