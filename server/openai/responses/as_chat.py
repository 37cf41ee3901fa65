"""The body of a response -> the body of the chat that generates it."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from engine_adapter.seam.text import clip
from server.errors import InvalidField
from server.openai.responses.conversation import Message
from server.openai.responses.field_names import validation_error
from server.schema.chat import ChatCompletionRequest
from server.schema.generation_body import GenerationBody
from server.schema.json_values import surrogate_path
from server.schema.responses import (
    AllowedTools,
    ChosenFunction,
    FunctionTool,
    JsonSchemaText,
    ResponsesRequest,
)
from server.schema.structured import JsonObjectFormat
from server.text import is_unicode

_SAMPLING = """
    temperature top_p top_k min_p min_tokens seed stop stop_token_ids ignore_eos
    presence_penalty frequency_penalty repetition_penalty logit_bias allowed_token_ids bad_words
    skip_special_tokens include_stop_str_in_output prediction
    structured_outputs grammar json_schema format
    guided_json guided_regex guided_choice guided_grammar
"""
_REQUEST = """
    model stream stream_options spec_decode speculative_model num_speculative_tokens
    cache_salt priority truncate_prompt_tokens truncation_side
    chat_template_kwargs parallel_tool_calls include_reasoning
"""
SHARED = frozenset((_SAMPLING + _REQUEST).split())
"""The fields of a chat that a response has too, with the same meaning.

They are listed, because a field that a response cannot show must be refused.
"""


_OWN = frozenset(ResponsesRequest.model_fields) - frozenset(GenerationBody.model_fields)


_REPEATED = {
    "input",
    "instructions",
    "metadata",
    "text",
    "tools",
    "tool_choice",
    "reasoning",
    "user",
    "safety_identifier",
    "prompt_cache_key",
}


def chat_body(body: ResponsesRequest, messages: Sequence[Message]) -> ChatCompletionRequest:
    """The chat of a response. Raises `ApiError`.

    Unknown fields go with it, so that they are refused, or reported as ignored, as in a chat.
    """
    fields = {
        **_unknown(body),
        **{name: value for name, value in body if name in SHARED & body.model_fields_set},
        **_converted(body),
        "messages": list(messages),
    }
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        raise validation_error(error, fields) from None


def check_own_fields(body: ResponsesRequest) -> None:
    """Raises `InvalidField` for a field that a chat has and a response does not."""
    known = SHARED | _OWN
    inherited = {name: value for name, value in body if name not in known}
    for name, value in {**(body.model_extra or {}), **inherited}.items():
        if name in ChatCompletionRequest.model_fields and value is not None:
            message = f"{name} is a field of /v1/chat/completions; /v1/responses does not have it."
            raise InvalidField(name, message, "unsupported_parameter")


def check_text(body: ResponsesRequest) -> None:
    """Raises `InvalidField` for a lone surrogate in what the response or the store repeats."""
    repeated = body.model_dump(include=_REPEATED)
    if not is_unicode(json.dumps(repeated, ensure_ascii=False)):
        path = surrogate_path(repeated)
        raise InvalidField(path, f"{path} contains a lone surrogate.")


def _unknown(body: ResponsesRequest) -> dict[str, Any]:
    """The fields that neither a response nor a chat has."""
    unknown = (body.model_extra or {}).items()
    return {k: v for k, v in unknown if k not in ChatCompletionRequest.model_fields}


def _converted(body: ResponsesRequest) -> dict[str, Any]:
    """The fields that a chat has under another name or in another form, if they are set."""
    text, reasoning = body.text, body.reasoning
    tools, tool_choice = _tools(body)
    converted = {
        "max_completion_tokens": body.max_output_tokens,
        "response_format": None if text is None else _response_format(body),
        "verbosity": None if text is None else text.verbosity,
        "reasoning_effort": None if reasoning is None else reasoning.effort,
        "tools": tools,
        "tool_choice": tool_choice,
        "logprobs": True if body.has_logprobs else None,
        "top_logprobs": _top_logprobs(body),
    }
    return {name: value for name, value in converted.items() if value is not None}


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    wanted = body.text and body.text.format
    if isinstance(wanted, JsonObjectFormat):
        return {"type": "json_object"}
    if isinstance(wanted, JsonSchemaText):
        schema = wanted.model_dump(by_alias=True, exclude={"type"}, exclude_unset=True)
        return {"type": "json_schema", "json_schema": schema}
    return None


def _top_logprobs(body: ResponsesRequest) -> int | None:
    if body.top_logprobs and not body.has_logprobs:
        message = "top_logprobs requires include to have message.output_text.logprobs."
        raise InvalidField("top_logprobs", message)
    return body.top_logprobs if body.has_logprobs else None


def _tools(body: ResponsesRequest) -> tuple[list[dict[str, Any]] | None, Any]:
    """The chat's tools and its choice. Of `allowed_tools`, the model sees only those allowed."""
    tools, choice = body.tools, body.tool_choice
    if isinstance(choice, AllowedTools):
        allowed = {tool.name for tool in choice.tools}
        known = {tool.name for tool in tools or ()}
        for number, tool in enumerate(choice.tools):
            if tool.name not in known:
                param = f"tool_choice.tools.{number}.name"
                raise InvalidField(param, f"{param}: tools has no function {clip(tool.name)}.")
        tools = [tool for tool in tools or () if tool.name in allowed]
    shaped = None if tools is None else [_tool(tool) for tool in tools]
    if isinstance(choice, AllowedTools):
        return shaped, choice.mode
    if isinstance(choice, ChosenFunction):
        return shaped, {"type": "function", "function": {"name": choice.name}}
    return shaped, choice


def _tool(tool: FunctionTool) -> dict[str, Any]:
    function = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": function}
