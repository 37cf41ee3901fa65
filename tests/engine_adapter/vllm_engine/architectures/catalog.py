"""The architectures of the table in docs/lab/architectures.md, as data.

Each is a small model that the tests make: two layers or as few as its pattern of layers needs, with
random weights and the tokenizer of the demo.
"""

from collections.abc import Mapping
from typing import Any

from tests.engine_adapter.vllm_engine.architectures.architecture import ABSENT, Architecture
from tests.engine_adapter.vllm_engine.support.window_models import (
    CHUNK,
    FULL,
    SLIDING,
    SMALL,
    WINDOW,
)

_WINDOWS: Mapping[str, Any] = {"sliding_window": WINDOW, "layer_types": [SLIDING, FULL]}
_SHARED_KV: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "sliding_window": WINDOW,
    "layer_types": [SLIDING, FULL] * 2,
}
"""The last two layers read the KV of those before."""

_EXPERTS: Mapping[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
_LOCAL_EXPERTS: Mapping[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED_EXPERTS: Mapping[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}
_MAMBA: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_d_ssm": 128,
    "mamba_n_groups": 1,
    "mamba_expand": 1,
    "mamba_chunk_size": 32,
}
"""States that take no more memory than the KV of a block, so blocks have 32 tokens as elsewhere."""

_NO_OUTPUT, _NO_EMBEDDINGS = "no `lm_head`", "no `embed_tokens`"


def _row(name: str, model_type: str = "", no_eagle: str = "", **fields: Any) -> Architecture:
    return Architecture(name, model_type or name, fields, no_eagle)


def _hybrid(name: str, no_eagle: str = "", **fields: Any) -> Architecture:
    return Architecture(name, name, {**_MAMBA, **fields}, no_eagle, recurrent=True)


def _refused(name: str, reason: str, **fields: Any) -> Architecture:
    return Architecture(name, name, fields, refused=reason)


SERVED: tuple[Architecture, ...] = (
    _row("llama"),
    _row("llama, tied", "llama", tie_word_embeddings=True),
    _row(
        "llama, long context",
        "llama",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    _row("mistral", sliding_window=None),
    _row("mistral, window", "mistral", sliding_window=WINDOW),
    _row("ministral", **_WINDOWS),
    _row("ministral3"),
    _row("mixtral", **_LOCAL_EXPERTS),
    _row("qwen2"),
    _row(
        "qwen2, window",
        "qwen2",
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=0,
    ),
    _row("qwen3"),
    _row("qwen2_moe", **_EXPERTS, shared_expert_intermediate_size=64),
    _row("qwen3_moe", **_EXPERTS),
    _row("opt", no_eagle=_NO_EMBEDDINGS, ffn_dim=192, word_embed_proj_dim=128),
    _row("gpt2", no_eagle=_NO_EMBEDDINGS),
    _row("gpt_neox", no_eagle=_NO_EMBEDDINGS, num_key_value_heads=ABSENT, rotary_pct=1.0),
    _row("gptj", no_eagle=_NO_EMBEDDINGS, rotary_dim=16),
    _row("gpt_bigcode", no_eagle=_NO_EMBEDDINGS, num_key_value_heads=ABSENT),
    _row("gemma", tie_word_embeddings=True),
    _row("gemma2", no_eagle=_NO_OUTPUT, **_WINDOWS, tie_word_embeddings=True),
    _row("gemma3", "gemma3_text", **_WINDOWS, tie_word_embeddings=True),
    _row(
        "gemma4",
        "gemma4_text",
        **_WINDOWS,
        tie_word_embeddings=True,
        global_head_dim=32,
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=SMALL["vocab_size"],
    ),
    _row("vaultgemma", **_WINDOWS, tie_word_embeddings=True),
    _row("phi", partial_rotary_factor=0.5),
    _row("phi3"),
    _row("phi3, window", "phi3", sliding_window=WINDOW - 1),
    _row(
        "phimoe",
        **_LOCAL_EXPERTS,
        attention_bias=True,
        lm_head_bias=True,
        architectures=["PhiMoEForCausalLM"],
    ),
    _row(
        "falcon",
        head_dim=ABSENT,
        new_decoder_architecture=True,
        num_kv_heads=2,
        bias=False,
        no_eagle=_NO_EMBEDDINGS,
    ),
    _row(
        "falcon, alibi",
        "falcon",
        head_dim=ABSENT,
        alibi=True,
        multi_query=False,
        bias=True,
        parallel_attn=False,
        no_eagle=_NO_EMBEDDINGS,
    ),
    _row("bloom", no_eagle=_NO_EMBEDDINGS, tie_word_embeddings=True),
    _row("starcoder2"),
    _row("starcoder2, window", "starcoder2", sliding_window=WINDOW),
    _row("stablelm"),
    _row("cohere", no_eagle=_NO_OUTPUT, tie_word_embeddings=True),
    _row("cohere2", no_eagle=_NO_OUTPUT, **_WINDOWS, tie_word_embeddings=True),
    _row("cohere2_moe", no_eagle=_NO_OUTPUT, **_WINDOWS, **_EXPERTS, tie_word_embeddings=True),
    _row("olmo"),
    _row("olmo2"),
    _row("olmo3", **_WINDOWS),
    _row("olmoe", **_EXPERTS),
    _row("flex_olmo", num_experts=4, num_experts_per_tok=2),
    _row("granite"),
    _row("granite_swa", **_WINDOWS),
    _row("granitemoe", **_LOCAL_EXPERTS),
    _row("granitemoeshared", **_LOCAL_EXPERTS, shared_intermediate_size=64),
    _row("granitemoe_swa", **_WINDOWS, **_LOCAL_EXPERTS, shared_intermediate_size=64),
    _row("nemotron"),
    _row("exaone4", **_WINDOWS),
    _row("exaone_moe", **_WINDOWS, **_EXPERTS, sliding_window_pattern=None),
    _row("smollm3", no_rope_layers=[1, 0]),
    _row("glm"),
    _row("glm4"),
    _row("glm4_moe", **_ROUTED_EXPERTS),
    _row("ernie4_5"),
    _row("ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=64),
    _row("seed_oss"),
    _row("arcee"),
    _row("apertus"),
    _row("hunyuan", "hunyuan_v1_dense"),
    _row("hunyuan, experts", "hunyuan_v1_moe", num_experts=4, moe_topk=2),
    _row("hyperclovax"),
    _row("gpt_oss", **_WINDOWS, **_LOCAL_EXPERTS),
    _row(
        "afmoe",
        **_WINDOWS,
        **_EXPERTS,
        num_shared_experts=1,
        score_func="sigmoid",
        route_norm=True,
        n_group=1,
        topk_group=1,
    ),
    _row(
        "hy_v3",
        **_EXPERTS,
        expert_hidden_dim=64,
        route_norm=True,
        qk_norm=True,
        first_k_dense_replace=1,
    ),
    _row("mellum", **_WINDOWS, **_EXPERTS),
    _row("jais2"),
    _row("cwm", **_WINDOWS),
    _row(
        "mimo_v2_flash",
        **_WINDOWS,
        **_ROUTED_EXPERTS,
        v_head_dim=32,
        hybrid_layer_pattern=[1, 0],
        moe_layer_freq=[0, 1],
        sliding_window_size=WINDOW,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=4,  # transformers doubles those of the full layers
        swa_head_dim=32,
        swa_v_head_dim=32,
        add_swa_attention_sink_bias=True,
        layernorm_epsilon=1e-5,
    ),
    _row(
        "llama4",
        "llama4_text",
        attention_chunk_size=CHUNK,
        no_rope_layer_interval=2,
        intermediate_size_mlp=192,
        interleave_moe_layer_step=3,  # so no layer has experts
        use_qk_norm=False,
    ),
    _row(
        "granite 4, attention",
        "granitemoehybrid",
        layer_types=["attention"] * 2,
        **_LOCAL_EXPERTS,
        shared_intermediate_size=64,
        position_embedding_type="rope",
    ),
    _row(
        "gemma3n",
        "gemma3n_text",
        **_WINDOWS,
        tie_word_embeddings=True,
        num_kv_shared_layers=0,
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=SMALL["vocab_size"],
        laurel_rank=32,
        no_eagle=_NO_OUTPUT,
    ),
    _row(
        "gemma3n, shared KV",
        "gemma3n_text",
        **_SHARED_KV,
        tie_word_embeddings=True,
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=SMALL["vocab_size"],
        laurel_rank=32,
        no_eagle=_NO_OUTPUT,
    ),
    _row(
        "gemma4, shared KV",
        "gemma4_text",
        **_SHARED_KV,
        tie_word_embeddings=True,
        global_head_dim=32,
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=SMALL["vocab_size"],
    ),
    _hybrid("falcon_h1"),
    _hybrid(
        "granitemoehybrid",
        layer_types=["mamba", "attention"] * 2,
        **_LOCAL_EXPERTS,
        shared_intermediate_size=192,
        position_embedding_type="rope",
    ),
    _hybrid(
        "nemotron_h",
        layers_block_type=["linear_attention", "full_attention", "linear_attention", "mlp"],
        mamba_num_heads=8,
        mamba_head_dim=16,
        ssm_state_size=16,
    ),
    _hybrid(
        "zamba2",
        layers_block_type=["linear_attention", "hybrid"] * 2,
        n_mamba_heads=8,
        mamba_ngroups=1,
        chunk_size=32,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
    ),
)
"""Those that are served: every proposer has all checks."""

_SIGMOID = "experts chosen by a sigmoid, on CPU"

REFUSED: tuple[Architecture, ...] = (
    _refused("hrm_text", "attention that is not causal"),
    _refused("minimax_m2", _SIGMOID, **_LOCAL_EXPERTS),
    _refused("laguna", _SIGMOID, **_WINDOWS, **_EXPERTS),
    _refused("dbrx", "weights that vLLM cannot load"),
)
"""Those that are refused at start."""
