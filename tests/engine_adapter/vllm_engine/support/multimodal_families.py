"""The families of multimodal models whose texts are compared."""

from collections.abc import Mapping
from typing import Any

from engine_adapter.seam.media import Modality
from tests.engine_adapter.vllm_engine.support import audio_families, mrope_families
from tests.engine_adapter.vllm_engine.support.multimodal_models import TEXT, Family


def _llava(ids: Mapping[str, int]) -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=56,
        patch_size=14,
        projection_dim=64,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**TEXT),
        image_token_index=ids["<image>"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=16,
    )


def _llava_processor(tokenizer: Any) -> Any:
    from transformers import CLIPImageProcessor, LlavaProcessor

    pictures = CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    return LlavaProcessor(
        pictures,
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def _gemma3(ids: Mapping[str, int]) -> Any:
    from transformers import Gemma3Config

    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "vision_use_head": False,
    }
    text = {**TEXT, "model_type": "gemma3_text", "sliding_window": 64, "query_pre_attn_scalar": 32}
    return Gemma3Config(
        vision_config=vision,
        text_config=text,
        mm_tokens_per_image=4,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
    )


def _gemma3_processor(tokenizer: Any) -> Any:
    from transformers import Gemma3ImageProcessor, Gemma3Processor

    pictures = Gemma3ImageProcessor(size={"height": 56, "width": 56})
    return Gemma3Processor(pictures, tokenizer, image_seq_length=4)


def _gemma4(ids: Mapping[str, int]) -> Any:
    from transformers import Gemma4Config

    vision = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "position_embedding_size": 256,
        "default_output_length": 70,
    }
    text = {
        **TEXT,
        "model_type": "gemma4_text",
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 64,
        "global_head_dim": TEXT["head_dim"],
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
    }
    return Gemma4Config(
        text_config=text,
        vision_config=vision,
        boi_token_id=ids["<|image>"],
        eoi_token_id=ids["<image|>"],
        image_token_id=ids["<|image|>"],
        video_token_id=ids["<|video|>"],
        tie_word_embeddings=False,
    )


def _gemma4_with_audio(ids: Mapping[str, int]) -> Any:
    config = _gemma4(ids)
    audio = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "subsampling_conv_channels": (128, 4),  # the first is the mel bins too
        "output_proj_dims": 48,
    }
    fields = {"audio_config": audio, "audio_token_id": ids["<|audio|>"]}
    fields |= {"boa_token_id": ids["<|audio>"], "eoa_token_index": ids["<audio|>"]}
    return type(config)(**(config.to_dict() | fields))


def _gemma4_processor(tokenizer: Any) -> Any:
    from transformers import Gemma4AudioFeatureExtractor, Gemma4Processor
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
    from transformers.models.gemma4.video_processing_gemma4 import Gemma4VideoProcessor

    return Gemma4Processor(
        Gemma4AudioFeatureExtractor(),
        Gemma4ImageProcessorPil(max_soft_tokens=70),
        tokenizer,
        Gemma4VideoProcessor(),
        image_seq_length=70,
    )


def _idefics3(ids: Mapping[str, int]) -> Any:
    from transformers import Idefics3Config, LlamaConfig

    vision = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
    }
    return Idefics3Config(
        vision_config=vision,
        text_config=LlamaConfig(**TEXT),
        image_token_id=ids["<image>"],
        scale_factor=2,
        pad_token_id=0,
    )


def _idefics3_processor(tokenizer: Any) -> Any:
    from transformers import Idefics3ImageProcessor, Idefics3Processor

    pictures = Idefics3ImageProcessor(
        size={"longest_edge": 112}, max_image_size={"longest_edge": 56}
    )
    return Idefics3Processor(pictures, tokenizer, image_seq_len=4)


def _mistral3(ids: Mapping[str, int]) -> Any:
    from transformers import Mistral3Config, MistralConfig, PixtralVisionConfig

    vision = PixtralVisionConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=112,
        patch_size=14,
    )
    return Mistral3Config(
        vision_config=vision,
        text_config=MistralConfig(**TEXT),
        image_token_index=ids["[IMG]"],
        spatial_merge_size=2,
    )


def _mistral3_processor(tokenizer: Any) -> Any:
    from transformers import PixtralImageProcessor, PixtralProcessor

    pictures = PixtralImageProcessor(size={"longest_edge": 112}, patch_size=28)
    return PixtralProcessor(pictures, tokenizer, patch_size=14, spatial_merge_size=2)


def _internvl(ids: Mapping[str, int]) -> Any:
    from transformers import InternVLConfig, InternVLVisionConfig

    vision = InternVLVisionConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=[56, 56],
        patch_size=[14, 14],
    )
    return InternVLConfig(
        vision_config=vision,
        text_config={**TEXT, "model_type": "qwen3"},
        image_token_id=ids["<IMG_CONTEXT>"],
        image_seq_length=4,
        tie_word_embeddings=False,
    )


def _internvl_processor(tokenizer: Any) -> Any:
    from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

    size = {"height": 56, "width": 56}
    pictures = GotOcr2ImageProcessor(size=size, crop_to_patches=True, max_patches=4)
    return InternVLProcessor(
        pictures, tokenizer, InternVLVideoProcessor(size=size), image_seq_length=4
    )


def _llama4(ids: Mapping[str, int]) -> Any:
    from transformers import Llama4Config

    vision = {
        "hidden_size": 64,
        "intermediate_size": 256,  # four states of a picture are joined
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "vision_output_dim": 96,
        "projector_input_dim": 96,
        "projector_output_dim": 96,
    }
    text = {
        **TEXT,
        "model_type": "llama4_text",
        "attention_chunk_size": 64,
        "no_rope_layer_interval": 2,
        "intermediate_size_mlp": 192,
        "interleave_moe_layer_step": 3,  # so no layer has experts
        "use_qk_norm": False,
    }
    return Llama4Config(
        vision_config=vision,
        text_config=text,
        boi_token_index=ids["<|image_start|>"],
        eoi_token_index=ids["<|image_end|>"],
        image_token_index=ids["<|patch|>"],
    )


def _llama4_processor(tokenizer: Any) -> Any:
    from transformers import Llama4ImageProcessor, Llama4Processor

    pictures = Llama4ImageProcessor(size={"height": 56, "width": 56}, max_patches=4)
    return Llama4Processor(pictures, tokenizer, patch_size=14, pixel_shuffle_ratio=0.5)


GEMMA4_TOKENS = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}

VISION_MODEL = {"vision_tower.": "vision_tower.vision_model."}
"""Where vLLM has a level more than transformers 5."""

FAMILIES = {
    "llava": Family(
        "llava",
        "<image>",
        ("<image>",),
        _llava,
        _llava_processor,
        VISION_MODEL,
    ),
    "gemma3": Family(
        "gemma3",
        "<start_of_image>",
        ("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        _gemma3,
        _gemma3_processor,
        VISION_MODEL,
        named_tokens={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
    ),
    "gemma4": Family(
        "gemma4",
        "<|image|>",
        (*GEMMA4_TOKENS.values(), "<|video|>"),
        _gemma4,
        _gemma4_processor,
        named_tokens=GEMMA4_TOKENS,
        has_assistant=True,
    ),
    "gemma4_audio": Family(
        "gemma4",
        "<|audio|>",
        (*GEMMA4_TOKENS.values(), "<|video|>"),
        _gemma4_with_audio,
        _gemma4_processor,
        named_tokens=GEMMA4_TOKENS,
        has_assistant=True,
        modality=Modality.AUDIO,
    ),
    "idefics3": Family(
        "idefics3",
        "<image>",
        (
            "<image>",
            "<fake_token_around_image>",
            "<global-img>",
            *(f"<row_{r}_col_{c}>" for r in range(1, 3) for c in range(1, 3)),
            "<end_of_utterance>",
        ),
        _idefics3,
        _idefics3_processor,
    ),
    "mistral3": Family(
        "mistral3", "[IMG]", ("[IMG]", "[IMG_BREAK]", "[IMG_END]"), _mistral3, _mistral3_processor
    ),
    "internvl": Family(
        "internvl",
        "<IMG_CONTEXT>",
        ("<IMG_CONTEXT>", "<img>", "</img>", "<video>"),
        _internvl,
        _internvl_processor,
        named_tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "llama4": Family(
        "llama4",
        "<|image|>",
        (
            "<|image|>",
            "<|image_start|>",
            "<|image_end|>",
            "<|patch|>",
            "<|tile_x_separator|>",
            "<|tile_y_separator|>",
        ),
        _llama4,
        _llama4_processor,
    ),
    **mrope_families.FAMILIES,
    **audio_families.FAMILIES,
}
"""By name."""
