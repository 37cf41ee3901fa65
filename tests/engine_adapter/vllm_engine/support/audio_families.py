"""Families that take recordings."""

from collections.abc import Mapping
from typing import Any

from engine_adapter.seam.media import Modality
from tests.engine_adapter.vllm_engine.support.multimodal_models import TEXT, Family

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "num_mel_bins": 32,
}
"""Of a small encoder of Whisper's kind."""


def _features() -> Any:
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(SIZES["num_mel_bins"])


def _qwen2_audio(ids: Mapping[str, int]) -> Any:
    from transformers import Qwen2AudioConfig

    return Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", **SIZES},
        text_config={**TEXT, "model_type": "qwen2"},
        audio_token_index=ids["<|AUDIO|>"],
    )


def _qwen2_audio_processor(tokenizer: Any) -> Any:
    from transformers import Qwen2AudioProcessor

    return Qwen2AudioProcessor(_features(), tokenizer)


LANGUAGE_MODEL = {"language_model.model.model.": "language_model.model."}
"""transformers 5 writes one level more than it reads."""

FAMILIES = {
    "qwen2_audio": Family(
        "qwen2_audio",
        "<|audio_bos|><|AUDIO|><|audio_eos|>",
        ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
        _qwen2_audio,
        _qwen2_audio_processor,
        LANGUAGE_MODEL,
        modality=Modality.AUDIO,
    ),
}
"""By name."""
