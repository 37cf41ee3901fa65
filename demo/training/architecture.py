"""Shapes of the demo models: three Llamas with one vocabulary.

The head sizes are supported by vLLM's CPU attention. Each model has two KV heads, so that tensor
parallelism can divide them between two ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import LlamaConfig

from demo.tokenizer import MAX_LENGTH, VOCAB_SIZE


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one Llama; `heads * head_dim` equals `hidden`."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    intermediate: int
    kv_heads: int = 2


SHAPES = {
    "target": Shape(hidden=256, layers=6, heads=4, head_dim=64, intermediate=768),
    "draft": Shape(hidden=192, layers=2, heads=6, head_dim=32, intermediate=512),
    "draft-small": Shape(hidden=64, layers=2, heads=2, head_dim=32, intermediate=320),
}


def llama_config(name: str) -> LlamaConfig:
    """The Hugging Face configuration of the model `name` (a key of `SHAPES`)."""
    shape = SHAPES[name]
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=MAX_LENGTH,
        rms_norm_eps=1e-5,
        initializer_range=0.02,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
