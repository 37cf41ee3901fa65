"""Media in prompts: what the target takes, and vLLM's own processing of them."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.media import (
    MediaItem,
    MediaPrompt,
    MediaSupport,
    Modality,
    ModalitySupport,
    Video,
)
from engine_adapter.seam.text import truncate
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.target_media import VideoForm, sample_rate

MAX_ITEMS = 64
"""The most items of one modality in a request, where `limit_mm_per_prompt` allows more."""


def media_support(
    vllm_config: Any, renderer: Any, chat_template: str | None
) -> MediaSupport | None:
    """What media the target takes; `None` if it takes text only.

    Args:
        renderer: vLLM's.
        chat_template: the text of the server's chat template; `None` is the tokenizer's.
    """
    model_config = vllm_config.model_config
    if not model_config.supports_multimodal_inputs:
        return None
    info, model_class = renderer.get_mm_processor().info, compat.get_model_cls(model_config)
    modalities = {
        modality: ModalitySupport(
            placeholder=_placeholder(model_class, modality),
            max_items=min(limit, MAX_ITEMS),
            sample_rate=sample_rate(info) if modality is Modality.AUDIO else 0,
            choose_frames=VideoForm(model_config).choose_frames
            if modality is Modality.VIDEO
            else None,
        )
        for modality in Modality
        if (limit := info.allowed_mm_limits.get(modality, 0))
    }
    if not modalities:
        return None
    return MediaSupport(
        modalities,
        takes_parts=compat.resolve_chat_template_content_format(
            chat_template, None, "auto", renderer.get_tokenizer(), model_config=model_config
        )
        == "openai",
        allowed_domains=tuple(model_config.allowed_media_domains or ()),
    )


def _placeholder(model_class: Any, modality: Modality) -> str:
    """The text of an item, with `{number}` where the model's class writes its number.

    It is empty where the class has none: then the chat template writes it.
    """
    try:
        text_1, text_2 = (model_class.get_placeholder_str(modality, n) or "" for n in (1, 2))
    except ValueError:
        return ""
    return text_1 if text_1 == text_2 else text_1.replace("1", "{number}")


async def render_media(
    renderer: Any,
    token_ids: Sequence[int],
    items: Sequence[MediaItem],
    param: str,
    processor_kwargs: Mapping[str, Any],
) -> MediaPrompt:
    """Puts the items into a prompt in which each has its placeholder.

    vLLM does it in a thread, one prompt at a time. The engine gets all that is computed: a request
    may end before it reaches the engine, so nothing of an item may be expected there.

    Args:
        renderer: vLLM's.

    Raises:
        InvalidRequest: vLLM refuses them; it names `param`.
    """
    contents: dict[str, list[Any]] = {}
    for item in items:
        content = item.content
        if isinstance(content, Video):
            content = VideoForm(renderer.model_config).item(content)
        contents.setdefault(item.modality, []).append(content)
    prompt = {
        "prompt_token_ids": list(token_ids),
        "multi_modal_data": contents,
        "mm_processor_kwargs": dict(processor_kwargs),
    }
    try:
        payload = await renderer.process_for_engine_async(prompt, time.time(), skip_mm_cache=True)
    except AssertionError as error:
        message = (
            f"{param}: the model's processor finds no place for the media in the prompt; the chat "
            f"template (--chat-template) must write the model's placeholders: {error}"
        )
        raise InvalidRequest(param, truncate(message)) from error
    except (ValueError, RuntimeError, TypeError) as error:
        message = f"{param}: the model's processor refuses the media: {truncate(str(error))}"
        raise InvalidRequest(param, message) from error
    return MediaPrompt(tuple(payload["prompt_token_ids"]), payload)
