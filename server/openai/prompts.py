"""A body's messages or text -> prompt token ids, alike for generating and for `/tokenize`."""

from collections.abc import Sequence

from engine_adapter.types import EngineInfo
from server.errors import InvalidField
from server.rendering import Renderer
from server.schema.chat import ChatPromptFields, Message
from server.schema.content import Prediction


async def chat_prompt(
    renderer: Renderer, messages: Sequence[Message], fields: ChatPromptFields
) -> tuple[int, ...]:
    """The token ids of a chat. Raises `InvalidField`."""
    go_on = bool(fields.continue_final_message)
    if go_on and fields.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other."
        raise InvalidField("continue_final_message", message)
    return await renderer.encode_chat(
        [message.for_template() for message in messages],
        # A last turn that goes on leaves no new one to open.
        add_generation_prompt=not go_on and fields.add_generation_prompt is not False,
        continue_final_message=go_on,
        add_special_tokens=bool(fields.add_special_tokens),
        variables=fields.chat_template_kwargs,
    )


async def text_prompt(
    renderer: Renderer, text: str, add_special_tokens: bool | None
) -> tuple[int, ...]:
    """The token ids of a text, special tokens included unless they are declined."""
    special = add_special_tokens is not False
    return await renderer.encode(text, add_special_tokens=special)


async def predicted_tokens(
    renderer: Renderer, info: EngineInfo, prediction: Prediction | None
) -> tuple[int, ...]:
    """The token ids of what a client expects; none without. Raises `InvalidField`."""
    if prediction is None:
        return ()
    tokens = await renderer.encode(
        prediction.text, add_special_tokens=False, param="prediction.content"
    )
    if len(tokens) > info.max_model_len:
        message = (
            f"prediction.content has {len(tokens)} tokens, and this model's maximum context length "
            f"is {info.max_model_len}."
        )
        raise InvalidField("prediction.content", message, "context_length_exceeded")
    return tokens
