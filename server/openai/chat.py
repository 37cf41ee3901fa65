"""`/v1/chat/completions` and its batches: from the body to a prepared request."""

import asyncio
from dataclasses import replace
from typing import cast

from engine_adapter.seam.types import SamplingOptions
from server.errors import InvalidField
from server.openai.answer_overlap import earlier_overlap
from server.openai.body_checks import (
    check_choices,
    check_enforced,
    check_generation_body,
    unmet_documents,
    unmet_effort,
)
from server.openai.chat_input import ChatInput, chat_input
from server.openai.chat_shape import ChatShape
from server.openai.prompts import (
    check_prompt,
    predicted_tokens,
    prompt_text_limit,
    render_prompt,
    truncated,
)
from server.openai.request import PreparedRequest, answer_options, new_request_id
from server.openai.sampling import (
    check_logprobs,
    output_limit,
    sampling_options,
    thinking_budget,
)
from server.openai.tool_use import check_tool_use, tool_use
from server.schema.base import without_effect
from server.schema.chat import ChatBatchRequest, ChatCompletionRequest
from server.schema.generation_body import GenerationBody
from server.state import Runtime

_ID_PREFIX = "chatcmpl-"


async def prepare_chat(runtime: Runtime, body: ChatCompletionRequest) -> PreparedRequest:
    """Checks and renders a chat completion. Raises `ApiError`."""
    return await prepare_input(runtime, body, chat_input(body, body.messages), _ID_PREFIX)


async def prepare_chats(runtime: Runtime, body: ChatBatchRequest) -> PreparedRequest:
    """Checks and renders several chats, which are one request. Raises `ApiError`."""
    check_choices(len(body.messages), body)
    shared, requests = chat_input(body, body.messages[0]), list[PreparedRequest]()
    for number, messages in enumerate(body.messages):
        chat = shared.with_messages(messages, f"messages.{number}")
        if sources := chat.prompt.media_sources():
            param = sources[0].param
            message = f"{param}: media need a chat of their own; send it alone."
            raise InvalidField(param, message)
        requests.append(await prepare_input(runtime, body, chat, _ID_PREFIX))
        body = body.model_copy(update={"prediction": None})  # the first request has its tokens
        await asyncio.sleep(0)  # each takes milliseconds, and there can be thousands
    overlaps = [request.overlap for request in requests if request.overlap is not None]
    return replace(
        requests[0],
        prompts=[prompt for request in requests for prompt in request.prompts],
        options=[options for request in requests for options in request.options],
        shape=ChatShape.of_all([cast(ChatShape, request.shape) for request in requests]),
        overlap=max(overlaps, default=None),
    )


async def prepare_input(
    runtime: Runtime, body: GenerationBody, chat: ChatInput, id_prefix: str
) -> PreparedRequest:
    """Checks and renders a chat of any endpoint.

    Args:
        body: its fields that have one name in all endpoints.
        id_prefix: the beginning of the response's id, with its separator.

    Raises:
        ApiError: the chat cannot be generated.
    """
    checked = check_generation_body(runtime, body)
    _check_input(runtime, body, chat)
    info, settings = runtime.info, runtime.settings
    ignored = (*checked.ignored, *chat.ignored, *_unmet(runtime, chat))
    token_ids, media = await render_prompt(runtime, chat.prompt, prompt_text_limit(runtime, body))
    limit = chat.max_tokens or settings.default_max_tokens
    prompt = truncated(body, info, token_ids, limit, has_media=media is not None)
    check_prompt(info, prompt, chat.names.messages)
    options = _options(runtime, body, chat, len(prompt))
    prediction = await predicted_tokens(runtime.renderer, info, body.prediction)
    overlap = None
    if runtime.router.uses_overlap:
        overlap = await earlier_overlap(runtime.renderer, chat.prompt.messages)
    use = tool_use(runtime, body, chat, tuple(prompt))
    ignored += use.unmet(strict=settings.strict_fields)
    readers = [use.new_reader() for _ in range(body.n or 1)]
    return PreparedRequest(
        answer_options(body, settings),
        replace(checked, ignored=ignored),
        new_request_id(id_prefix),
        [prompt],
        [use.constrained(options)],
        prediction,
        ChatShape(chat.num_top_logprobs, readers, tokens_as_ids=chat.tokens_as_ids),
        overlap,
        template_variables=chat.prompt.variables,
        media=media,
    )


def _options(
    runtime: Runtime, body: GenerationBody, chat: ChatInput, prompt_tokens: int
) -> SamplingOptions:
    """The options of the chat, with its constraint. Raises `InvalidField`."""
    info, names = runtime.info, chat.names
    return sampling_options(
        body,
        info,
        prompt_tokens,
        chat.constraint,
        max_tokens=output_limit(runtime, prompt_tokens, chat.max_tokens, chat.max_tokens_name),
        logprobs=chat.num_top_logprobs,
        thinking_token_budget=thinking_budget(
            info, chat.thinking_token_budget, chat.constraint, names.thinking_budget
        ),
        prompt_logprobs=body.prompt_logprobs,
    )


def _unmet(runtime: Runtime, chat: ChatInput) -> tuple[str, ...]:
    """The fields that the chat template knows nothing of."""
    return (
        *unmet_documents(runtime, chat.prompt),
        *unmet_effort(runtime, chat.effort, chat.names.effort, chat.prompt.template),
    )


def _check_input(runtime: Runtime, body: GenerationBody, chat: ChatInput) -> None:
    """Raises `InvalidField` for what this server or its engine does not allow."""
    if chat.ignored and runtime.settings.strict_fields:
        raise without_effect(chat.ignored[0])
    if chat.prompt.template is not None and not runtime.settings.trust_request_chat_template:
        message = (
            "chat_template needs a server that was started with --trust-request-chat-template."
        )
        raise InvalidField("chat_template", message, "unsupported_parameter")
    check_tool_use(runtime, body, chat)
    check_enforced(runtime.settings, chat.constraint)
    check_logprobs(runtime.info, chat.num_top_logprobs, "top_logprobs")
    check_logprobs(runtime.info, body.prompt_logprobs, "prompt_logprobs")
