"""Numbers of fields, messages and parts have limits, which are checked before what they count."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from server.errors import InvalidField
from server.schema.base import MAX_FIELDS
from server.schema.bounds import MAX_PARTS, MAX_SCHEMA_TEXT_CHARS, check_schema
from server.schema.chat import ChatCompletionRequest, DetokenizeRequest
from server.schema.completions import CompletionRequest
from server.schema.messages import MAX_MESSAGES
from tests.server.gateway import Gateway


def unknown(count: int) -> dict[str, Any]:
    return {f"field{i}": 1 for i in range(count)}


def errors(model: type[BaseModel], body: Any) -> list[Any]:
    with pytest.raises(ValidationError) as raised:
        model.model_validate(body)
    return list(raised.value.errors())


async def test_a_body_may_have_many_unknown_fields_but_not_too_many(gateway: Gateway) -> None:
    accepted = await gateway.complete(max_tokens=1, **unknown(MAX_FIELDS - 2))
    assert accepted.status_code == 200
    refused = await gateway.complete(max_tokens=1, **unknown(MAX_FIELDS - 1))
    assert refused.status_code == 400
    message = f"Invalid body: has {MAX_FIELDS + 1} fields; the maximum is {MAX_FIELDS}"
    assert refused.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("spec_decode", unknown(MAX_FIELDS + 1)),
        ("stream_options", unknown(MAX_FIELDS + 1)),
        ("messages", [{"role": "user", "content": "a"} | unknown(MAX_FIELDS)]),
    ],
)
def test_parts_of_a_body_have_the_same_limit(field: str, value: Any) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], field: value}
    (error,) = errors(ChatCompletionRequest, body)
    assert error["type"] == "too_many_fields"
    assert error["loc"][0] == field


async def test_a_chat_has_as_many_messages_as_at_openai(gateway: Gateway) -> None:
    message = {"role": "user", "content": ""}
    for count, code in ((MAX_MESSAGES, "context_length_exceeded"), (MAX_MESSAGES + 1, None)):
        body = {"messages": [message] * count}
        response = await gateway.post("/v1/chat/completions", body)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, "messages", code)
    count, maximum = MAX_MESSAGES + 1, MAX_MESSAGES
    assert error["message"] == f"messages: has {count:,} entries; the maximum is {maximum:,}"


def test_the_parts_and_calls_of_all_messages_are_bounded_together() -> None:
    half = [{"type": "text", "text": "a"}] * (MAX_PARTS // 2)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call] * (MAX_PARTS // 2)}
    messages = [{"role": "user", "content": half}, calls]
    assert ChatCompletionRequest.model_validate({"messages": messages})
    messages.append({"role": "user", "content": half[:1]})
    (error,) = errors(ChatCompletionRequest, {"messages": messages})
    assert error["type"] == "too_many_parts"
    assert str(MAX_PARTS + 1) in error["msg"]


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (DetokenizeRequest, {"tokens": ["a"] * 1000}),
        (ChatCompletionRequest, {"messages": [{}] * 1000}),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": ["a"] * 1000}),
    ],
)
def test_a_long_list_of_wrong_values_is_few_errors(model: type[BaseModel], body: Any) -> None:
    assert len(errors(model, body)) <= 2


def schema(levels: int) -> dict[str, Any]:
    """A schema with so many levels of objects."""
    return {"not": schema(levels - 1)} if levels > 1 else {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"logit_bias": {str(i): 1 for i in range(1030)}},
            "logit_bias: has 1,030 entries; the maximum is 1,024",
        ),
        (
            {"stop": "x" * 1025},
            "stop: a stop sequence has 1,025 characters; the maximum is 1,024",
        ),
        (
            {"structured_outputs": {"choice": ["x" * 150_001, "y" * 50_000]}},
            "structured_outputs.choice: has 200,001 characters in all its texts; the maximum is "
            "200,000",
        ),
        (
            {"structured_outputs": {"json": schema(70)}},
            "structured_outputs.json has 70 levels of objects and lists; the maximum is 64.",
        ),
        (
            {"structured_outputs": {"json": "[" * 5000 + "]" * 5000}},
            "structured_outputs.json has more than 64 levels of objects and lists, which is the "
            "maximum.",
        ),
        (
            {"structured_outputs": {"json": {"enum": [0] * 50_001}}},
            "structured_outputs.json has more than 50,000 values, which is the maximum.",
        ),
        (
            {"structured_outputs": {"json": " " * 500_001}},
            "structured_outputs.json has 500,001 characters; the maximum is 500,000.",
        ),
        ({"n": 3, "prompt": ["a"] * 1024}, "The number of prompts times n can be at most 2048, "),
    ],
)
async def test_a_bound_that_is_passed_is_named_with_what_was_given(
    gateway: Gateway, fields: dict[str, Any], message: str
) -> None:
    response = await gateway.complete(**{"prompt": "a", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


def longest(what: str, chars: int) -> dict[str, Any]:
    """A schema whose longest text, at some place, has so many characters."""
    text = "a" * chars
    schemas: dict[str, dict[str, Any]] = {
        "const": {"const": text},
        "const within": {"properties": {"a": {"anyOf": [{"const": [{"b": text}]}]}}},
        "name in a const": {"const": {text: 1}},
        "enum": {"enum": ["a", 1, text]},
        "pattern": {"type": "string", "pattern": text},
        "required": {"required": [text]},
        "name": {"properties": {text: {}}},
        "pattern of a name": {"patternProperties": {text: {}}},
        "property called as a keyword": {"properties": {"properties": {"const": text}}},
    }
    return schemas[what]


@pytest.mark.parametrize(
    ("what", "place"),
    [
        ("const", "a text of const"),
        ("const within", "a text of const"),
        ("name in a const", "a name"),
        ("enum", "a text of enum"),
        ("pattern", "a text of pattern"),
        ("required", "a text of required"),
        ("name", "a name"),
        ("pattern of a name", "a name"),
        ("property called as a keyword", "a text of const"),
    ],
)
def test_a_text_that_a_schema_puts_into_the_answer_has_a_bound(what: str, place: str) -> None:
    check_schema(longest(what, MAX_SCHEMA_TEXT_CHARS), "field")
    with pytest.raises(InvalidField) as refused:
        check_schema(longest(what, MAX_SCHEMA_TEXT_CHARS + 1), "field")
    expected = f"field has 20,001 characters in {place}; the maximum is 20,000."
    assert (refused.value.param, refused.value.message) == ("field", expected)


def test_such_texts_have_a_bound_together() -> None:
    texts: dict[str, Any] = {f"p{i}": {"enum": ["a" * 10_000]} for i in range(20)}
    check_schema({"properties": texts}, "field")
    texts["one more"] = {"const": "a"}
    with pytest.raises(InvalidField, match="has 200,001 characters in all texts of const, enum"):
        check_schema({"properties": texts}, "field")


def test_other_texts_may_be_long_and_properties_may_be_called_as_keywords() -> None:
    long = {"description": "a" * 50_000, "examples": ["a" * 30_000]}
    check_schema({**long, "properties": {"const": long, "pattern": long, "enum": long}}, "field")


@pytest.mark.parametrize("tools", [False, True])
async def test_a_long_const_is_refused_by_its_field(gateway: Gateway, tools: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"const": "a" * 20_001}}}
    body: dict[str, Any] = {"structured_outputs": {"json": schema}}
    if tools:
        function = {"name": "f", "parameters": schema}
        body = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    message = {"role": "user", "content": "a"}
    response = await gateway.post("/v1/chat/completions", {"messages": [message], **body})
    field = "tools.0.function.parameters" if tools else "structured_outputs.json"
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field)
    assert "20,001 characters in a text of const; the maximum is 20,000" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"choice": ["a"] * 5000}}, "structured_outputs.choice"),
        ({"guided_choice": ["a"] * 5000}, "guided_choice"),
    ],
)
async def test_too_many_choices_are_counted_in_the_message(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    error = (await gateway.complete(**fields)).json()["error"]
    assert error["param"] == param
    assert error["message"] == f"{param}: has 5,000 entries; the maximum is 2,000"
