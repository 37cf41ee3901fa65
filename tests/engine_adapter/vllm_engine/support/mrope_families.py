"""Families whose pictures and videos have positions in time, height and width: Qwen's and GLM's."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine_adapter.seam.media import Modality
from tests.engine_adapter.proposers.mtp_targets import glm_ocr_layer, qwen3_5
from tests.engine_adapter.vllm_engine.support.multimodal_models import TEXT, Family

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
    # Pictures and videos are normalized alike, as in the published models: vLLM does it once.
    fields = {"patch_size": 16, "size": size, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
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


GLM_PICTURE = "<|begin_of_image|><|image|><|end_of_image|>"
GLM = (
    *("<|begin_of_image|>", "<|image|>", "<|end_of_image|>"),
    *("<|begin_of_video|>", "<|video|>", "<|end_of_video|>"),
)
"""Special tokens of GLM's models."""


def _glm4v(ids: Mapping[str, int]) -> Any:
    from transformers import Glm4vConfig

    vision = {
        "depth": 2,
        "hidden_size": 64,
        "out_hidden_size": TEXT["hidden_size"],
        "intermediate_size": 96,
        "num_heads": 2,
        "image_size": 56,
        "patch_size": 14,
    }
    half = {**MROPE, "mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}
    return Glm4vConfig(
        vision_config=vision,
        text_config={**TEXT, "rope_parameters": half, "model_type": "glm4v_text"},
        image_token_id=ids["<|image|>"],
        image_start_token_id=ids["<|begin_of_image|>"],
        image_end_token_id=ids["<|end_of_image|>"],
        video_token_id=ids["<|video|>"],
        video_start_token_id=ids["<|begin_of_video|>"],
        video_end_token_id=ids["<|end_of_video|>"],
    )


def _glm_ocr(ids: Mapping[str, int]) -> Any:
    from transformers import GlmOcrConfig

    glm4v = _glm4v(ids)
    vision = {"depth": 2, "hidden_size": 64, "out_hidden_size": TEXT["hidden_size"]}
    rope = {**MROPE, "mrope_section": [4, 6, 6], "partial_rotary_factor": 1.0}
    # vLLM's connector has this size, that of transformers thrice the states'.
    inner = {"intermediate_size": 3 * TEXT["hidden_size"]}
    text = {**TEXT, **inner, "rope_parameters": rope, "model_type": "glm_ocr_text"}
    return GlmOcrConfig(
        vision_config={**vision, "intermediate_size": 96, "num_heads": 2, "image_size": 56},
        text_config={**text, "num_nextn_predict_layers": 1},
        **{name: getattr(glm4v, name) for name in vars(glm4v) if name.endswith("_token_id")},
    )


def _glm4v_processor(tokenizer: Any) -> Any:
    from transformers import Glm4vImageProcessor, Glm4vProcessor, Glm4vVideoProcessor

    size = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
    return Glm4vProcessor(Glm4vImageProcessor(size=size), tokenizer, Glm4vVideoProcessor(size=size))


FAMILIES = {
    "qwen2_vl": Family("qwen2_vl", QWEN_PICTURE, QWEN, _qwen2_vl, _qwen2_vl_processor),
    "qwen2_5_vl": Family("qwen2_5_vl", QWEN_PICTURE, QWEN, _qwen2_5_vl, _qwen2_5_vl_processor),
    "qwen3_vl": Family(
        "qwen3_vl", QWEN_PICTURE, QWEN, _qwen3_vl, _qwen3_vl_processor, shows_layers=True
    ),
    "qwen3_5": Family(
        "qwen3_5",
        QWEN_PICTURE,
        QWEN,
        _qwen3_5,
        _qwen3_vl_processor,
        mtp=replace(qwen3_5, block="model.language_model.layers.1."),
    ),
    "glm4v": Family("glm4v", GLM_PICTURE, GLM, _glm4v, _glm4v_processor),
    "glm_ocr": Family("glm_ocr", GLM_PICTURE, GLM, _glm_ocr, _glm4v_processor, mtp=glm_ocr_layer),
}
"""By name."""

FAMILIES |= {
    f"{name}_video": replace(
        FAMILIES[name],
        placeholder=FAMILIES[name].placeholder.replace("image", "video"),
        modality=Modality.VIDEO,
    )
    for name in ("qwen2_vl", "qwen3_vl")
}
