"""Small multimodal models with random weights, and pictures for them."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from demo import model_path
from tests.engine_adapter.proposers.mtp_targets import TARGETS, Layout
from tests.engine_adapter.vllm_engine.architectures.small_models import LOUD, QUIET
from tests.engine_adapter.vllm_engine.support.window_models import SMALL

TEXT: Mapping[str, Any] = {
    **SMALL,
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
    "vocab_size": 2112,
}
"""The fields of every language model; its vocabulary has room for the tokens of pictures."""


@dataclass(frozen=True)
class Family:
    """A kind of multimodal model.

    Attributes:
        name: of the family; the model type of transformers.
        placeholder: the text that stands for a picture in a prompt.
        tokens: special tokens that are added to the demo's tokenizer.
        config: makes the configuration from the ids of the special tokens, by their text.
        processor: makes the processor from the tokenizer.
        renames: beginnings of weights' names as transformers writes them -> as vLLM reads them.
        named_tokens: names by which the processor asks the tokenizer for special tokens.
        mtp: where the checkpoint has its MTP layer; `None` for a model without one.
        has_assistant: whether an assistant of Gemma 4 drafts for it.
    """

    name: str
    placeholder: str
    tokens: tuple[str, ...]
    config: Callable[[Mapping[str, int]], Any]
    processor: Callable[[Any], Any]
    renames: Mapping[str, str] = field(default_factory=dict)
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    mtp: Layout | None = None
    has_assistant: bool = False


def picture(seed: int, width: int = 56, height: int = 56) -> Image.Image:
    """A picture of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


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


QWEN_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
"""Special tokens of Qwen's models."""


def _qwen_ids(ids: Mapping[str, int]) -> dict[str, Any]:
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }


MROPE = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
"""Positions in time, height and width."""


def _qwen2_vl(ids: Mapping[str, int]) -> Any:
    from transformers import Qwen2VLConfig

    vision = {
        "depth": 2,
        "embed_dim": 64,
        "hidden_size": TEXT["hidden_size"],
        "num_heads": 2,
        "mlp_ratio": 2,
        "patch_size": 14,
    }
    text = {**TEXT, "rope_parameters": MROPE, "model_type": "qwen2_vl_text"}
    return Qwen2VLConfig(vision_config=vision, text_config=text, **_qwen_ids(ids))


def _qwen2_vl_processor(tokenizer: Any) -> Any:
    from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

    limits = {"min_pixels": 56 * 56, "max_pixels": 112 * 112}
    return Qwen2VLProcessor(
        Qwen2VLImageProcessor(**limits), tokenizer, Qwen2VLVideoProcessor(**limits)
    )


def _qwen2_5_vl(ids: Mapping[str, int]) -> Any:
    from transformers import Qwen2_5_VLConfig

    vision = {
        "depth": 2,
        "hidden_size": 64,
        "out_hidden_size": TEXT["hidden_size"],
        "intermediate_size": 96,
        "num_heads": 2,
        "patch_size": 14,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    text = {**TEXT, "rope_parameters": MROPE, "model_type": "qwen2_5_vl_text"}
    return Qwen2_5_VLConfig(vision_config=vision, text_config=text, **_qwen_ids(ids))


def _qwen2_5_vl_processor(tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    limits = {"min_pixels": 56 * 56, "max_pixels": 112 * 112}
    return Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(**limits), tokenizer, Qwen2VLVideoProcessor(**limits)
    )


def _qwen3_vl(ids: Mapping[str, int]) -> Any:
    from transformers import Qwen3VLConfig

    return Qwen3VLConfig(
        vision_config=_qwen3_vision(deepstack_visual_indexes=[0]),
        text_config={
            **TEXT,
            "rope_parameters": {**MROPE, "mrope_interleaved": True},
            "model_type": "qwen3_vl_text",
        },
        **_qwen_ids(ids),
    )


def _qwen3_vision(**fields: Any) -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": 64,
        "out_hidden_size": TEXT["hidden_size"],
        "intermediate_size": 96,
        "num_heads": 2,
        "patch_size": 16,
        "num_position_embeddings": 64,
        **fields,
    }


def _qwen3_vl_processor(tokenizer: Any) -> Any:
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    size = {"shortest_edge": 64 * 64, "longest_edge": 128 * 128}
    fields = {"patch_size": 16, "size": size}
    return Qwen3VLProcessor(
        Qwen2VLImageProcessor(**fields), tokenizer, Qwen3VLVideoProcessor(**fields)
    )


def _qwen3_5(ids: Mapping[str, int]) -> Any:
    from transformers import Qwen3_5Config

    text = {
        **TEXT,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "rope_parameters": {**MROPE, "mrope_interleaved": True, "partial_rotary_factor": 1.0},
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
    }
    return Qwen3_5Config(vision_config=_qwen3_vision(), text_config=text, **_qwen_ids(ids))


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
    "qwen2_vl": Family("qwen2_vl", QWEN_PICTURE, QWEN, _qwen2_vl, _qwen2_vl_processor),
    "qwen2_5_vl": Family("qwen2_5_vl", QWEN_PICTURE, QWEN, _qwen2_5_vl, _qwen2_5_vl_processor),
    "qwen3_vl": Family("qwen3_vl", QWEN_PICTURE, QWEN, _qwen3_vl, _qwen3_vl_processor),
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
        ("<|image|>", "<|image>", "<image|>", "<|video|>", "<|audio|>", "<|audio>", "<audio|>"),
        _gemma4,
        _gemma4_processor,
        named_tokens={
            "image_token": "<|image|>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "audio_token": "<|audio|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
        },
        has_assistant=True,
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
    "qwen3_5": Family(
        "qwen3_5",
        QWEN_PICTURE,
        QWEN,
        _qwen3_5,
        _qwen3_vl_processor,
        mtp=replace(TARGETS["qwen3_5"], block="model.language_model.layers.1."),
    ),
}
"""By name."""


def write_multimodal(family: Family, folder: Path) -> str:
    """Writes a random model in float32 with its processor; returns its folder.

    Its weights vary so much that its texts do not repeat one token.
    """
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(model_path("target") / name, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = family.tokens
    tokenizer.add_special_tokens({"additional_special_tokens": list(texts)})
    if family.name == "gemma3":  # vLLM looks for these tokens of its vocabulary
        tokenizer.add_tokens(["\n" * count for count in range(1, 5)])
    if family.named_tokens:
        tokenizer.save_pretrained(folder)
        named_tokens = dict(family.named_tokens)
        tokenizer = AutoTokenizer.from_pretrained(folder, extra_special_tokens=named_tokens)
    numbers: Any = tokenizer.convert_tokens_to_ids(list(texts))
    ids = dict(zip(texts, numbers, strict=True))
    config = family.config(ids)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                # Gemma multiplies embeddings, which are its output layer too, by this root.
                embedding = 0.05 / (weight.shape[-1] ** 0.5 if family.name == "gemma3" else 1)
                std = embedding if "embed" in name else 2 * weight.shape[-1] ** -0.5
                torch.nn.init.normal_(weight, std=std)
        output = model.get_output_embeddings().weight
        quiet = torch.full((len(output), 1), QUIET)
        quiet[LOUD.start : LOUD.stop] = 1.0
        output *= quiet
    model.save_pretrained(folder)
    _change_weights(folder / "model.safetensors", family)
    processor = family.processor(tokenizer)
    processor.save_pretrained(folder)
    return str(folder)


def _change_weights(path: Path, family: Family) -> None:
    """Gives weights the names that vLLM reads, and adds the MTP layer."""
    renamed = {}
    for name, weight in load_file(path).items():
        begin = next((begin for begin in family.renames if name.startswith(begin)), "")
        renamed[family.renames.get(begin, begin) + name.removeprefix(begin)] = weight
    if family.mtp is not None:
        renamed |= family.mtp.layers(renamed, TEXT["num_hidden_layers"])
    save_file(renamed, path, {"format": "pt"})
