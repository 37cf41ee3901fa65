"""Bodies of `/v1/responses` that cannot be honoured: the field that each error names."""

from typing import Any

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

PATH = "/v1/responses"
UNSUPPORTED = "unsupported_parameter"
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def part(**fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [fields]}]}


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": 5}, "input", None),
    ({"input": {"role": "user"}}, "input", None),
    ({"input": []}, "input", None),
    ({"input": [5]}, "input.0", None),
    ({"input": [{}]}, "input.0.role", "missing_required_parameter"),
    ({"input": [{"role": "user"}]}, "input.0.content", "missing_required_parameter"),
    (
        {"input": [{"role": "user", "content": None}]},
        "input.0.content",
        "missing_required_parameter",
    ),
    ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", None),
    *(
        ({"input": [{"role": "user", "content": value}]}, "input.0.content", None)
        for value in (
            5,
            {"type": "input_text"},
            [{"type": "input_text", "text": ""}] * 10_001,
        )
    ),
    (part(type="input_image", image_url="x"), "input.0.content.0.image_url", UNSUPPORTED),
    (part(type="input_file", file_id="x"), "input.0.content.0", UNSUPPORTED),
    (part(type="input_text"), "input.0.content.0.text", "missing_required_parameter"),
    (part(text="x"), "input.0.content.0", None),
    *(
        ({"input": [{"type": kind, "id": "x"}]}, "input.0", UNSUPPORTED)
        for kind in (
            "web_search_call",
            "file_search_call",
            "computer_call",
            "computer_call_output",
            "code_interpreter_call",
            "mcp_call",
            "item_reference",
        )
    ),
    (
        {"input": [{"type": "function_call", "call_id": "a", "name": "f"}]},
        "input.0.arguments",
        "missing_required_parameter",
    ),
    (
        {"input": [{"type": "function_call_output", "call_id": "a", "output": "1"}]},
        "input.0.call_id",
        None,
    ),
    (
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
        "input.0.encrypted_content",
        UNSUPPORTED,
    ),
    ({"input": "\ud800"}, "input", None),
    ({"input": [{"role": "user", "content": "x", "id": "\ud800"}]}, "input.0.id", None),
    ({"input": [{"role": "user", "content": "x"}] * 10_001}, "input", None),
    *(
        ({name: "\ud800"}, name, None)
        for name in ("instructions", "user", "safety_identifier", "prompt_cache_key")
    ),
    ({"metadata": {"a": "\ud800"}}, "metadata.a", None),
    ({"metadata": {"\ud800": "a"}}, "metadata", None),
    (
        {"tools": [{"type": "function", "name": "f", "parameters": {"d": "\ud800"}}]},
        "tools.0.parameters.d",
        None,
    ),
    (
        {
            "input": [
                {"role": "user", "content": "x"},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "[" * 100_000},
                {"type": "function_call_output", "call_id": "a", "output": "1"},
            ]
        },
        "input.1",
        None,
    ),
    *(
        ({"tools": [{"type": kind}]}, "tools.0", UNSUPPORTED)
        for kind in ("", "web", "browser", "a" * 300)
    ),
    ({"tools": [{"type": "function"}]}, "tools.0.name", "missing_required_parameter"),
    ({"tools": 5}, "tools", None),
    ({"tool_choice": "always"}, "tool_choice", None),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice", UNSUPPORTED),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name", "missing_required_parameter"),
    (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}],
            }
        },
        "tool_choice.tools.0.name",
        None,
    ),
    ({"background": True, "store": False}, "background", None),
    ({"background": 1}, "background", None),
    ({"conversation": 1}, "conversation", None),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", UNSUPPORTED),
    ({"context_management": [{"type": "compaction"}]}, "context_management", UNSUPPORTED),
    ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options", UNSUPPORTED),
    ({"moderation": {"model": "m"}}, "moderation", UNSUPPORTED),
    ({"n": 2}, "n", UNSUPPORTED),
    ({"n": True}, "n", UNSUPPORTED),
    ({"response_format": {"type": "json_object"}}, "response_format", UNSUPPORTED),
    ({"max_tokens": 5}, "max_tokens", UNSUPPORTED),
    ({"max_completion_tokens": 5}, "max_completion_tokens", UNSUPPORTED),
    ({"messages": []}, "messages", UNSUPPORTED),
    ({"logprobs": True}, "logprobs", UNSUPPORTED),
    ({"return_token_ids": True}, "return_token_ids", UNSUPPORTED),
    ({"prompt_logprobs": 1}, "prompt_logprobs", UNSUPPORTED),
    (
        {"repetition_detection": {"max_pattern_size": 3, "min_count": 2}},
        "repetition_detection",
        UNSUPPORTED,
    ),
    ({"add_generation_prompt": False}, "add_generation_prompt", UNSUPPORTED),
    ({"enable_response_messages": True}, "enable_response_messages", UNSUPPORTED),
    ({"previous_input_messages": []}, "previous_input_messages", UNSUPPORTED),
    ({"return_mm_kwargs": True}, "return_mm_kwargs", UNSUPPORTED),
    ({"mm_payload": {"a": 1}}, "mm_payload", UNSUPPORTED),
    ({"reasoning": {"effort": "enormous"}}, "reasoning.effort", None),
    ({"max_output_tokens": 0}, "max_output_tokens", None),
    ({"max_output_tokens": 10**6}, "max_output_tokens", "context_length_exceeded"),
    ({"input": "word " * 5000}, "input", "context_length_exceeded"),
    ({"temperature": 3}, "temperature", None),
    ({"top_p": 2}, "top_p", None),
    ({"top_logprobs": 2}, "top_logprobs", None),
    ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs", None),
    ({"include": ["everything"]}, "include.0", None),
    ({"truncation": "always"}, "truncation", None),
    ({"reasoning": {"summary": "short"}}, "reasoning.summary", None),
    ({"reasoning": {"depth": 1}}, "reasoning.depth", "unknown_parameter"),
    ({"text": {"format": {"type": "xml"}}}, "text.format", None),
    (
        {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "text.format.name",
        "missing_required_parameter",
    ),
    (
        {"text": {"format": {"type": "json_schema", "name": "a b", "schema": SCHEMA}}},
        "text.format.name",
        None,
    ),
    ({"metadata": {"a": 5}}, "metadata.a", None),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", None),
    ({"metadata": {"k" * 65: ""}}, "metadata", None),
    ({"metadata": {"k": "v" * 513}}, "metadata", None),
    ({"stream_options": {"include_usage": True}}, "stream_options", None),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": True, "include_usage": True}},
        "stream_options.continuous_usage_stats",
        UNSUPPORTED,
    ),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        UNSUPPORTED,
    ),
    ({"previous_response_id": "resp_x"}, "previous_response_id", "previous_response_not_found"),
    ({"previous_response_id": 5}, "previous_response_id", None),
    ({"spec_decode": {"proposer": "no"}}, "spec_decode.proposer", "proposer_not_found"),
    ({"speculative_model": "no"}, "speculative_model", "proposer_not_found"),
    ({"use_beam_search": True}, "use_beam_search", UNSUPPORTED),
]


@pytest.mark.parametrize(("fields", "param", "code"), WRONG, ids=lambda value: str(value)[:60])
async def test_a_wrong_field_is_named(
    gateway: Gateway, fields: dict[str, Any], param: str, code: str | None
) -> None:
    response = await gateway.post(PATH, {"input": "Hello", **fields})
    error = response.json()["error"]
    assert response.status_code == 400, response.text
    assert (error["param"], error["code"]) == (param, code), error
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 600
    assert "max_completion_tokens" not in error["message"] or "max_completion" in str(fields)


async def test_input_is_required(gateway: Gateway) -> None:
    error = (await gateway.post(PATH, {})).json()["error"]
    assert (error["param"], error["code"]) == ("input", "missing_required_parameter")


async def test_an_unknown_model_is_a_404(gateway: Gateway) -> None:
    response = await gateway.post(PATH, {"input": "Hello", "model": "nobody"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_the_type_that_is_not_supported_is_in_the_message(gateway: Gateway) -> None:
    for fields, name in (
        ({"tools": [{"type": "browser"}]}, "'browser'"),
        ({"input": [{"type": "computer_call"}]}, "'computer_call'"),
        (part(type="input_file"), "'input_file'"),
    ):
        error = (await gateway.post(PATH, {"input": "Hello", **fields})).json()["error"]
        assert name in error["message"]


async def test_a_format_that_the_engine_refuses_is_named(gateway: Gateway) -> None:
    # The fake engine cannot enforce this format: the refusal shows that it was asked to.
    wanted = {"type": "json_object"}
    response = await gateway.post(PATH, {"input": "Hello", "text": {"format": wanted}})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "text.format")
    assert "text.format" in error["message"]


async def test_an_explicit_store_is_refused_where_nothing_is_stored(start: StartGateway) -> None:
    gateway = await start(max_stored_responses=0)
    error = (await gateway.post(PATH, {"input": "Hello", "store": True})).json()["error"]
    assert (error["param"], error["code"]) == ("store", UNSUPPORTED)
    body = (await gateway.post(PATH, {"input": "Hello", "max_output_tokens": 2})).json()
    assert body["store"] is False
