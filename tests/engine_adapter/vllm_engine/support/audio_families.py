"""Families that take recordings."""

from collections.abc import Mapping
from typing import Any

from engine_adapter.seam.media import Modality
from tests.engine_adapter.vllm_engine.support.multimodal_models import TEXT, Family

ENCODER = {
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "num_mel_bins": 32,
}
"""A small encoder of Whisper's kind."""


def _qwen2_audio(ids: Mapping[str, int]) -> Any:
    from transformers import Qwen2AudioConfig

    return Qwen2AudioConfig(
        audio_config=ENCODER,
        text_config={**TEXT, "model_type": "qwen2"},
        audio_token_index=ids["<|AUDIO|>"],
    )


def _qwen2_audio_processor(tokenizer: Any) -> Any:
    from transformers import Qwen2AudioProcessor, WhisperFeatureExtractor

    return Qwen2AudioProcessor(WhisperFeatureExtractor(ENCODER["num_mel_bins"]), tokenizer)


FAMILIES = {
    "qwen2_audio": Family(
        "qwen2_audio",
        "<|audio_bos|><|AUDIO|><|audio_eos|>",
        ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
        _qwen2_audio,
        _qwen2_audio_processor,
        {"language_model.model.model.": "language_model.model."},
        modality=Modality.AUDIO,
    ),
}
"""By name."""
