"""Errors of a chat, told in the fields of the response that was turned into the chat.

A response is checked and rendered as a chat, so an error names the chat's field.
"""

import re
from collections.abc import Sequence

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from server.errors import ApiError, InvalidField, to_api_error
from server.schema.base import refused_when_strict
from server.schema.responses import ResponsesRequest

_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "tool_choice.function": "tool_choice",
    "tool_choice.allowed_tools": "tool_choice",
}
"""A chat's field, or the beginning of its path -> the field of a response."""

_MESSAGE = re.compile(r"messages\b(?:\.(\d+))?")
_FUNCTION = re.compile(r"tools\.(\d+)\.function\b")


def response_error(error: ApiError, item_of: Sequence[str]) -> ApiError:
    """The error of a response for that of its chat; other errors than bad fields stay as they are.

    Args:
        item_of: the field of the response that each message of the chat comes from.
    """
    if not isinstance(error, InvalidField) or error.param is None:
        return error
    if error.code == "unknown_parameter" and "." not in error.param:
        return refused_when_strict(error.param, ResponsesRequest.model_fields)
    param = response_field(error.param, item_of)
    message = _renamed(error.message, error.param, param)
    return InvalidField(param, message, error.code)


def response_field(param: str, item_of: Sequence[str] = ()) -> str:
    """The field of a response for that of its chat."""
    if found := _MESSAGE.match(param):
        number = found[1]
        if number is None or int(number) >= len(item_of):
            return "input"
        return item_of[int(number)]
    if found := _FUNCTION.match(param):
        return f"tools.{found[1]}" + param[found.end() :]
    for chats, ours in _NAMES.items():
        if param == chats or param.startswith(f"{chats}."):
            return ours + param[len(chats) :]
    return param


def validation_error(error: ValidationError, body: object) -> ApiError:
    """The error of a chat's body that was made from a response and is not valid."""
    details = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
    return to_api_error(RequestValidationError(details, body=body))


def _renamed(message: str, chats: str, ours: str) -> str:
    """The message with the response's names in place of the chat's."""
    if chats.startswith("messages"):
        chats_name = re.compile(rf"(?<!these ){re.escape(chats)}\b")
    else:
        chats_name = re.compile(rf"\b{re.escape(chats)}\b")
    message = chats_name.sub(lambda _: ours, message)
    return re.sub(r"\bmax_(?:completion_)?tokens\b", "max_output_tokens", message)
