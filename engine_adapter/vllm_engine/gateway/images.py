"""Pictures in prompts: what the target takes, and vLLM's own processing of them."""

import time
from collections.abc import Sequence
from typing import Any

from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.images import ImagePrompt, ImageSupport
from engine_adapter.seam.text import truncate
from engine_adapter.vllm_engine import compat

MAX_IMAGES = 64
"""The most pictures of a request, where `limit_mm_per_prompt` allows more."""


def image_support(
    vllm_config: Any, renderer: Any, chat_template: str | None
) -> ImageSupport | None:
    """What pictures the target takes; `None` if it takes none.

    Args:
        renderer: vLLM's.
        chat_template: the text of the server's chat template; `None` is the tokenizer's.
    """
    model_config = vllm_config.model_config
    if not model_config.supports_multimodal_inputs:
        return None
    limit = renderer.get_mm_processor().info.allowed_mm_limits.get("image", 0)
    if not limit:
        return None
    return ImageSupport(
        placeholder=_placeholder(compat.get_model_cls(model_config)),
        takes_parts=compat.resolve_chat_template_content_format(
            chat_template, None, "auto", renderer.get_tokenizer(), model_config=model_config
        )
        == "openai",
        max_images=min(limit, MAX_IMAGES),
        allowed_domains=tuple(model_config.allowed_media_domains or ()),
    )


def _placeholder(model_class: Any) -> str:
    """The text of a picture, with `{number}` where the model's class writes its number."""
    text_1, text_2 = (model_class.get_placeholder_str("image", n) or "" for n in (1, 2))
    return text_1 if text_1 == text_2 else text_1.replace("1", "{number}")


async def render_images(
    renderer: Any, token_ids: Sequence[int], images: Sequence[Any], param: str
) -> ImagePrompt:
    """Puts the pictures into a prompt in which each has its placeholder.

    vLLM does it in a thread, one prompt at a time. The engine gets all that is computed: a request
    may end before it reaches the engine, so nothing of a picture may be expected there.

    Raises:
        InvalidRequest: vLLM refuses them; `param` is the field of the pictures.
    """
    prompt = {"prompt_token_ids": list(token_ids), "multi_modal_data": {"image": list(images)}}
    try:
        payload = await renderer.process_for_engine_async(prompt, time.time(), skip_mm_cache=True)
    except (ValueError, RuntimeError, TypeError) as error:
        message = f"{param}: the model's processor refuses the pictures: {truncate(str(error))}"
        raise InvalidRequest(param, message) from error
    return ImagePrompt(tuple(payload["prompt_token_ids"]), payload)
