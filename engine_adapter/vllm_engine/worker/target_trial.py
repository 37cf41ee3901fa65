"""The trial of the target: some steps before the first request.

Weights that load can still fail in a forward pass, which ends the engine at its first request, or
at its first picture. The steps are those with which vLLM warms its kernels up on a GPU; they are
over before a request comes, and nothing of them stays.
"""

from typing import Any

import numpy as np
from PIL import Image

from engine_adapter.seam.media import Modality, Video, VideoSource
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.target_media import VideoForm, sample_rate

_TEXT_TOKENS = 8
"""The tokens of the step that reads text: one of them is decoded."""

_SIDE = 32
"""Both sides of the picture, in pixels: one tile for models that cut pictures, and quickly read."""

_SECONDS = 1
"""Of the recording, which is silent."""

_FRAMES = 4
"""Of the video, which has one second: what the processors of Qwen and GLM read at least."""


def try_text(worker: Any) -> None:
    """Runs a step that reads a prompt and decodes a token. Raises what the target raises.

    Args:
        worker: vLLM's; every rank must call it.
    """
    compat.run_mixed_prefill_decode_warmup(
        worker.model_runner, worker.execute_model, worker.sample_tokens, _TEXT_TOKENS
    )


def try_media(worker: Any, modality: Modality) -> None:
    """Runs a step that reads a prompt with an item, if the target takes any of the modality.

    Of a prompt that is longer than a step it reads the beginning.

    Args:
        worker: vLLM's; every rank must call it.
    """
    runner = worker.model_runner
    if not runner.supports_mm_inputs:
        return
    processor = runner.mm_registry.create_processor(runner.model_config)
    if not processor.info.allowed_mm_limits.get(modality, 0):
        return
    text = processor.dummy_inputs.get_dummy_text({modality: 1})
    item = _item(modality, processor.info)
    prompt = processor(text, processor.info.parse_mm_data({modality: [item]}))
    token_ids = prompt["prompt_token_ids"]
    if len(token_ids) > runner.max_model_len:  # no request can have such an item
        return

    def execute(step: Any) -> Any:
        if step.scheduled_cached_reqs.req_ids:  # vLLM's step that decodes and reads a prompt
            (request,) = step.scheduled_new_reqs
            request.prompt_token_ids = request.prefill_token_ids = list(token_ids)
            request.mm_features = _features(prompt, modality)
            step.scheduled_encoder_inputs = {request.req_id: [*range(len(request.mm_features))]}
        return worker.execute_model(step)

    decoded_and_read = min(1 + len(token_ids), runner.max_num_tokens)
    compat.run_mixed_prefill_decode_warmup(runner, execute, worker.sample_tokens, decoded_and_read)
    runner.reset_encoder_cache()


def _item(modality: Modality, processing_info: Any) -> Any:
    if modality is Modality.IMAGE:
        return Image.new("RGB", (_SIDE, _SIDE))
    if modality is Modality.VIDEO:
        form = VideoForm(processing_info.ctx.model_config)
        original = VideoSource(_FRAMES, _FRAMES)
        numbers = tuple(form.choose_frames(original))
        frames = np.zeros((len(numbers), _SIDE, _SIDE, 3), np.uint8)
        return form.item(Video(frames, numbers, original))
    return np.zeros(round(_SECONDS * sample_rate(processing_info)), np.float32)


def _features(prompt: Any, modality: Modality) -> list[Any]:
    """The items of a prompt of vLLM's processor, as its scheduler sends them to a worker."""
    items, places = prompt["mm_kwargs"][modality], prompt["mm_placeholders"][modality]
    return [
        compat.MultiModalFeatureSpec(item, modality, f"trial-{number}", place)
        for number, (item, place) in enumerate(zip(items, places, strict=True))
    ]
