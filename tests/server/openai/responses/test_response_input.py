"""The body of a response as the input of a chat: each field is used, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from server.errors import InvalidField
from server.openai.body_checks import check_not_of_chats
from server.openai.chat_input import ChatInput
from server.openai.responses.callable_tools import callable_tools
from server.openai.responses.conversation import Turn
from server.openai.responses.response_input import response_input, with_messages
from server.schema.base import IGNORED, REFUSED, WITHOUT_EFFECT
from server.schema.chat import ChatCompletionRequest
from server.schema.responses import ResponsesRequest

API = (Path(__file__).parents[4] / "docs/api.md").read_text("utf-8")
SCHEMA = {"type": "object", "additionalProperties": False}


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


def test_every_field_that_only_a_chat_has_is_refused() -> None:
    only_chats = set(ChatCompletionRequest.model_fields) - set(ResponsesRequest.model_fields)
    assert {"messages", "max_tokens", "max_completion_tokens", "logprobs"} <= only_chats
    for name in only_chats:
        body = ResponsesRequest.model_validate({"input": "a", name: 1})
        with pytest.raises(InvalidField) as refused:
            check_not_of_chats(body, "/v1/responses")
        assert refused.value.param == name


def chat_of(body: ResponsesRequest) -> ChatInput:
    return response_input(body, callable_tools(body))


def request(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest.model_validate({"input": "a", **fields})


def test_fields_with_another_name_or_form_are_those_of_a_chat() -> None:
    chat = chat_of(
        request(
            max_output_tokens=5,
            text={"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
            include=["message.output_text.logprobs"],
            top_logprobs=2,
            reasoning={"effort": "low"},
            chat_template_kwargs={"a": 1},
        )
    )
    assert (chat.max_tokens, chat.max_tokens_name) == (5, "max_output_tokens")
    assert chat.constraint is not None
    assert (json.loads(chat.constraint.value), chat.constraint.param) == (SCHEMA, "text.format")
    assert chat.num_top_logprobs == 2
    variables = {"enable_thinking": True, "a": 1, "reasoning_effort": "low"}
    assert chat.prompt.variables == variables


def test_llama_cpps_schema_of_a_json_object_is_enforced() -> None:
    chat = chat_of(request(text={"format": {"type": "json_object", "schema": SCHEMA}}))
    assert chat.constraint is not None
    assert json.loads(chat.constraint.value) == SCHEMA


def test_a_function_is_that_of_a_chat() -> None:
    tool = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}
    chat = chat_of(request(tools=[tool], tool_choice={"type": "function", "name": "f"}))
    function = {"name": "f", "description": "d", "parameters": SCHEMA}
    assert chat.prompt.tools == [{"type": "function", "function": function}]
    assert chat.constraint is not None
    assert chat.constraint.param == "tools.0.parameters"


def test_the_model_sees_only_the_allowed_functions() -> None:
    tools = [{"type": "function", "name": name} for name in "abc"]
    allowed = [{"type": "function", "name": name} for name in "ca"]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    chat = chat_of(request(tools=tools, tool_choice=choice))
    assert [function.name for function in chat.tools.functions] == ["a", "c"]
    assert chat.tools.choice == "required"
    allowed.append({"type": "function", "name": "d"})
    with pytest.raises(InvalidField) as refused:
        chat_of(request(tools=tools, tool_choice=choice))
    assert refused.value.param == "tool_choice.tools.2.name"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "name": "f"}] * 2}, "tools.1.name"),
        (
            {"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]},
            "tools.0.parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": [{"type": "function", "name": "f"}],
                "tool_choice": {"type": "function", "name": "g"},
            },
            "tool_choice.name",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "x"}}}},
            None,
        ),
        (
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "s",
                        "schema": {"$ref": "#/a", "a": {"$ref": "#"}},
                    }
                }
            },
            "text.format.schema",
        ),
        (
            {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
        ),
        (
            {"reasoning": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "high"}},
            "reasoning.effort",
        ),
        ({"top_logprobs": 1}, "top_logprobs"),
    ],
)
def test_an_error_names_the_field_of_the_response(
    fields: dict[str, Any], param: str | None
) -> None:
    if param is None:
        chat_of(request(**fields))
        return
    with pytest.raises(InvalidField) as refused:
        chat_of(request(**fields))
    assert refused.value.param == param
    assert param in refused.value.message


def test_an_error_of_a_message_names_the_item_that_it_comes_from() -> None:
    deep = "[" * 101 + "]" * 101
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": f'{{"a":{deep}}}'},
    }
    turns = [
        Turn({"role": "user", "content": "a"}, "previous_response_id"),
        Turn({"role": "assistant", "content": None, "tool_calls": [call]}, "input.3"),
    ]
    with pytest.raises(InvalidField, match=r"^input\.3: has more than 100 levels") as refused:
        with_messages(chat_of(request()).prompt, "be brief", turns)
    assert refused.value.param == "input.3"
    with pytest.raises(InvalidField) as refused:
        with_messages(chat_of(request()).prompt, None, turns[:1] * 3000)
    assert refused.value.param == "input"
    prompt = with_messages(chat_of(request()).prompt, "be brief", turns[:1])
    assert list(prompt.message_names) == ["instructions", "previous_response_id"]
    assert [message.role for message in prompt.messages] == ["system", "user"]
