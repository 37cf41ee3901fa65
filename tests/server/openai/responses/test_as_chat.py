"""The body of a response as the body of a chat: each field is passed on, or refused."""

from pathlib import Path
from typing import Any

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from server.errors import InvalidField
from server.openai.responses.as_chat import SHARED, chat_body, check_own_fields
from server.schema.base import IGNORED, REFUSED, WITHOUT_EFFECT
from server.schema.chat import ChatCompletionRequest
from server.schema.generation_body import GenerationBody
from server.schema.responses import ResponsesRequest

API = (Path(__file__).parents[4] / "docs/api.md").read_text("utf-8")
MESSAGES: Any = [{"role": "user", "content": "a"}]
SHOWN_OTHERWISE = {"n", "response_format"}


def unknown(names: set[str]) -> set[str]:
    """Those of the names that the server would take for typing errors, or has not documented."""
    known = {*ResponsesRequest.model_fields, *REFUSED, *IGNORED, *WITHOUT_EFFECT}
    return {name for name in names if name not in known or f"`{name}`" not in API}


def test_every_field_of_openais_requests_is_known_and_documented() -> None:
    names = set(ResponseCreateParamsBase.__annotations__)
    assert len(names) > 25
    assert unknown(names) == set()


@pytest.mark.needs_vllm
def test_every_field_of_vllms_requests_is_known_and_documented() -> None:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest as Theirs

    names = set(Theirs.model_fields)
    assert len(names) > 40
    assert unknown(names) == set()


def test_every_field_of_a_chat_is_shared_or_refused() -> None:
    for name in set(GenerationBody.model_fields) - SHARED - SHOWN_OTHERWISE:
        # A value that is right for a field that a chat may have.
        fields: dict[str, Any] = {"input": "a", name: 1}
        body = ResponsesRequest.model_construct(**fields)
        with pytest.raises(InvalidField) as refused:
            check_own_fields(body)
        assert refused.value.param == name
    only_chats = set(ChatCompletionRequest.model_fields) - set(ResponsesRequest.model_fields)
    assert {"messages", "max_tokens", "max_completion_tokens", "logprobs"} <= only_chats
    for name in only_chats:
        body = ResponsesRequest.model_validate({"input": "a", name: 1})
        with pytest.raises(InvalidField) as refused:
            check_own_fields(body)
        assert refused.value.param == name


def test_shared_fields_are_passed_on_and_others_not_set() -> None:
    given: dict[str, Any] = {
        "temperature": 0.5,
        "seed": 3,
        "stop": ["x"],
        "stream": True,
        "spec_decode": {"proposer": "ngram"},
        "chat_template_kwargs": {"a": 1},
        "parallel_tool_calls": False,
        "unknown": 1,
    }
    body = ResponsesRequest.model_validate({"input": "a", **given})
    check_own_fields(body)
    chat = chat_body(body, MESSAGES)
    assert chat.model_fields_set == {"messages", *given}
    assert chat.model_extra == {"unknown": 1}
    for name, value in body:
        if name in given:
            assert getattr(chat, name) == value


def test_fields_with_another_name_are_converted() -> None:
    schema = {"type": "object", "additionalProperties": False}
    body = ResponsesRequest.model_validate(
        {
            "input": "a",
            "max_output_tokens": 5,
            "text": {"format": {"type": "json_schema", "name": "s", "schema": schema}},
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "tools": [{"type": "function", "name": "f", "description": "d", "parameters": schema}],
            "tool_choice": {"type": "function", "name": "f"},
        }
    )
    chat = chat_body(body, MESSAGES).model_dump(exclude_unset=True, by_alias=True)
    assert chat["max_completion_tokens"] == 5
    assert chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": schema},
    }
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 2)
    function = {"name": "f", "description": "d", "parameters": schema}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "f"}}
