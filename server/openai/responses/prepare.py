"""`/v1/responses`: from the body to a prepared request, by way of the chat that generates it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import loads
from typing import Any

from engine_adapter.seam.text import short_repr
from engine_adapter.seam.types import SamplingOptions
from server.errors import InvalidField
from server.openai.body_checks import CheckedBody, check_body, check_not_of_chats
from server.openai.chat import prepare_input
from server.openai.chat_input import ChatInput
from server.openai.chat_shape import ChatShape
from server.openai.prompts import render_prompt, text_limit
from server.openai.request import PreparedRequest
from server.openai.responses.callable_tools import CallableTool, callable_tools
from server.openai.responses.conversation import Source, Turn, beginnings, turns
from server.openai.responses.input_items import Item, input_items
from server.openai.responses.response_input import (
    check_text,
    counted_prompt,
    response_input,
    with_messages,
)
from server.openai.responses.store import BrokenChain, ResponseStore, retention
from server.openai.responses.stored_conversations import check_new_items, find
from server.schema.base import Strict, without_effect
from server.schema.responses import AnyResponse, CountInputRequest, Reasoning, ResponsePrompt
from server.state import Runtime

TOO_LONG = "context_length_exceeded"
"""The code of the errors that `truncation` can prevent."""


@dataclass(frozen=True, slots=True)
class PreparedResponse:
    """A response that is checked and rendered.

    Attributes:
        owner: whose key the request bears.
        items: the request's own input.
        previous_id: the response that it continues, if any.
        conversation_id: the conversation that it continues, which gets its items, if any.
        stored: it can be read and continued later.
        num_top_logprobs: alternatives of each token; `None` without log probabilities.
        fields: those of the response that repeat its request.
        tools: those that the model may call, by the names under which it sees them.
        shape: has the reader of the assistant's message.
    """

    owner: str
    items: Sequence[Item]
    previous_id: str | None
    conversation_id: str | None
    stored: bool
    num_top_logprobs: int | None
    fields: Mapping[str, Any]
    tools: Mapping[str, CallableTool]
    request: PreparedRequest
    shape: ChatShape


async def prepare_response(
    runtime: Runtime,
    body: AnyResponse,
    owner: str,
    closing: Sequence[Source] = (),
    ignored: Sequence[str] = (),
) -> PreparedResponse:
    """Checks and renders a response. Raises `ApiError`, in the terms of the response's fields.

    Args:
        closing: what the model reads after the conversation.
        ignored: fields that were left out of the body.
    """
    check_not_of_chats(body, "/v1/responses")
    stored = _is_stored(runtime.responses, body)
    history = earlier_items(runtime.responses, body, owner)
    items = _own_items(body, history)
    check_text(body)
    conversation = turns([*history, *_sources(items), *closing])
    tools = callable_tools(body)
    chat = response_input(body, tools)
    chat = replace(chat, ignored=(*chat.ignored, *ignored))
    request = await _prepare_chat(runtime, body, chat, conversation)
    shape = request.shape
    assert isinstance(shape, ChatShape)
    return PreparedResponse(
        owner=owner,
        items=items,
        previous_id=body.previous_response_id,
        conversation_id=None if body.conversation is None else body.conversation.id,
        stored=stored,
        num_top_logprobs=(body.top_logprobs or 0) if body.has_logprobs else None,
        fields=request_fields(body, request.options[0], stored=stored),
        tools=tools.written(chat.tools.choice),
        request=request,
        shape=shape,
    )


async def count_input_tokens(
    runtime: Runtime, body: CountInputRequest, owner: str
) -> tuple[int, CheckedBody]:
    """The tokens of a response's input, and what is ignored of its body. Raises `ApiError`."""
    checked = check_body(runtime, body)
    conversation = turns(conversation_items(runtime.responses, body, owner))
    prompt, ignored = counted_prompt(body, conversation)
    if ignored and runtime.settings.strict_fields:
        raise without_effect(ignored[0])
    max_chars = text_limit(runtime.renderer, runtime.info, is_bounded=False)
    token_ids, _ = await render_prompt(runtime, prompt, max_chars)
    return len(token_ids), replace(checked, ignored=(*checked.ignored, *ignored))


def conversation_items(
    store: ResponseStore, body: AnyResponse | CountInputRequest, owner: str
) -> list[Source]:
    """The items that the request continues, then its own. Raises `InvalidField` and `NotFound`."""
    history = earlier_items(store, body, owner)
    return [*history, *_sources(_own_items(body, history))]


def earlier_items(store: ResponseStore, body: ResponsePrompt, owner: str) -> list[Source]:
    """The items that the request continues. Raises `InvalidField` and `NotFound`."""
    name = "previous_response_id"
    previous_id = body.previous_response_id
    if body.conversation is not None:
        if previous_id is not None:
            message = "conversation and previous_response_id exclude each other; send one."
            raise InvalidField("conversation", message)
        conversation = find(store, body.conversation.id, owner, "conversation")
        return [Source(loads(item), "conversation") for item in conversation.items.values()]
    if previous_id is None:
        return []
    previous = store.find(previous_id, owner)
    if previous is None:
        message = (
            f"{name}: the response {short_repr(previous_id)} is not stored. {retention(store)}"
        )
        raise InvalidField(name, message, "previous_response_not_found")
    if previous.status not in ("completed", "incomplete"):
        message = (
            f"{name}: the status of {short_repr(previous_id)} is {previous.status}; only a "
            "response that is completed or incomplete can be continued."
        )
        raise InvalidField(name, message)
    try:
        chain = store.chain(previous)
    except BrokenChain as error:
        message = (
            f"{name}: {short_repr(previous_id)} continues {short_repr(error.missing_id)}, "
            "which was deleted. Send the whole conversation as input."
        )
        raise InvalidField(name, message, "previous_response_not_found") from None
    return [
        Source(item, name)
        for response in chain
        for item in (*loads(response.items), *loads(response.output))
    ]


def _sources(items: Sequence[Item]) -> list[Source]:
    return [Source(item, f"input.{number}") for number, item in enumerate(items)]


def _own_items(body: AnyResponse | CountInputRequest, history: Sequence[Source]) -> list[Item]:
    """The items of the request's own input. Raises `InvalidField`."""
    items = [] if body.input is None else input_items(body.input)
    if body.conversation is not None:
        check_new_items(items, (source.item["id"] for source in history), "input")
    return items


def _is_stored(store: ResponseStore, body: AnyResponse) -> bool:
    if body.store and not store.is_enabled:
        raise InvalidField("store", f"store: {retention(store)}", "unsupported_parameter")
    if body.background and not store.is_enabled:
        message = f"background: {retention(store)}"
        raise InvalidField("background", message, "unsupported_parameter")
    if body.background and body.store is False:
        message = "background needs a stored response; leave store out, or send true."
        raise InvalidField("background", message)
    return store.is_enabled and body.store is not False


async def _prepare_chat(
    runtime: Runtime, body: AnyResponse, chat: ChatInput, conversation: Sequence[Turn]
) -> PreparedRequest:
    """The prepared chat; with `truncation`, without the oldest messages that do not fit."""

    async def prepared(turns: Sequence[Turn]) -> PreparedRequest:
        prompt = with_messages(chat.prompt, body.instructions, turns)
        return await prepare_input(runtime, body, replace(chat, prompt=prompt), "resp_")

    try:
        return await prepared(conversation)
    except InvalidField as error:
        begins = beginnings(conversation)
        if body.truncation != "auto" or error.code != TOO_LONG or not begins:
            raise
    # From the shortest on, so that no attempt renders much more than the context.
    fitting = await prepared(conversation[begins[0] :])
    fits, too_long, step = 0, len(begins), 1
    while too_long - fits > 1:
        attempt = fits + step if too_long == len(begins) else (fits + too_long) // 2
        attempt = min(attempt, too_long - 1)
        try:
            fitting = await prepared(conversation[begins[attempt] :])
            fits, step = attempt, step * 2
        except InvalidField as error:
            if error.code != TOO_LONG:
                raise
            too_long = attempt
    return fitting


def request_fields(body: AnyResponse, sampling: SamplingOptions, *, stored: bool) -> dict[str, Any]:
    """The request's fields, with their defaults where they are not set."""
    reasoning = body.reasoning or Reasoning()
    choice = body.tool_choice or "auto"
    return {
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "conversation": None if body.conversation is None else body.conversation.model_dump(),
        "store": stored,
        "background": bool(body.background),
        "metadata": body.metadata or {},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "top_logprobs": body.top_logprobs or 0,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "text": _text(body),
        "reasoning": reasoning.model_dump(include={"effort", "summary"}),
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "tool_choice": choice.model_dump() if isinstance(choice, Strict) else choice,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "truncation": body.truncation or "disabled",
        "service_tier": "default",
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _text(body: AnyResponse) -> dict[str, Any]:
    text = body.text
    text_format = {"type": "text"}
    if text is not None and text.format is not None:
        text_format = text.format.model_dump(by_alias=True, exclude_none=True)
    verbosity = text.verbosity if text is not None else None
    return {"format": text_format, "verbosity": verbosity or "medium"}
