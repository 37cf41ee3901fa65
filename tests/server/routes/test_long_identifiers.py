"""Texts that identify something are bounded on every route, as OpenAI bounds them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.gateway import Gateway

CHAT, COMPLETION, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    COMPLETION: {"prompt": "a", "max_tokens": 1},
    RESPONSE: {"input": "a", "max_output_tokens": 1},
}
MOST = {"user": 512, "safety_identifier": 128, "prompt_cache_key": 64, "service_tier": 512}
HUGE = 1_000_000


def cases() -> Iterator[tuple[str, str]]:
    yield from ((path, field) for path in BASE for field in MOST)


async def check_refused(
    gateway: Gateway, path: str, body: dict[str, Any], param: str, *words: str
) -> None:
    response = await gateway.post(path, {**BASE[path], **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), response.text
    assert error["message"].startswith(param)
    for word in words:
        assert word in error["message"]
    assert len(response.text) < 600


@pytest.mark.parametrize(("path", "field"), cases())
async def test_a_long_identifier_is_refused_with_its_length_and_the_limit(
    gateway: Gateway, path: str, field: str
) -> None:
    most = MOST[field]
    allowed = await gateway.post(path, {**BASE[path], field: "é" * most})
    assert allowed.status_code == 200, allowed.text
    for chars in (most + 1, HUGE):
        words = (f"has {chars:,} characters", f"the maximum is {most:,}")
        await check_refused(gateway, path, {field: "é" * chars}, field, *words)
        response = await gateway.post(path, {**BASE[path], field: "é" * chars})
        assert response.json()["error"]["code"] == "string_above_max_length"


@pytest.mark.parametrize("path", BASE)
async def test_metadata_is_bounded(gateway: Gateway, path: str) -> None:
    most = {("k" * 62) + f"{i:02}": "v" * 512 for i in range(16)}
    allowed = await gateway.post(path, {**BASE[path], "metadata": most})
    assert allowed.status_code == 200, allowed.text
    for pairs, words in (
        ({str(i): "" for i in range(17)}, "has 17 pairs; the maximum is 16"),
        ({"k" * 65: ""}, "has 65 characters; the maximum is 64"),
        ({"k" * HUGE: ""}, "has 1,000,000 characters; the maximum is 64"),
        ({"key": "v" * 513}, "the value of 'key' has 513 characters; the maximum is 512"),
        ({"key": "v" * HUGE}, "the value of 'key' has 1,000,000 characters"),
    ):
        await check_refused(gateway, path, {"metadata": pairs}, "metadata", words)


@pytest.mark.parametrize("value", [5, ["a" * HUGE], {"a": {"b": "c" * HUGE}}])
async def test_where_they_have_no_effect_values_of_another_type_still_pass(
    gateway: Gateway, value: Any
) -> None:
    for path in (CHAT, COMPLETION):
        for field in ("user", "metadata"):
            assert (await gateway.post(path, {**BASE[path], field: value})).status_code == 200


async def test_an_id_that_a_parser_made_of_a_long_name_of_a_tool_comes_back(
    gateway: Gateway,
) -> None:
    name = "f" * 64
    items = [
        {"role": "user", "content": "a"},
        {
            "type": "function_call",
            "call_id": f"functions.{name}:0",
            "name": name,
            "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": f"functions.{name}:0", "output": "1"},
    ]
    answer = await gateway.post(RESPONSE, {**BASE[RESPONSE], "input": items})
    assert answer.status_code == 200, answer.text


CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
LONG = "x" * 513


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a", "name": LONG}]}, "messages.0"),
        (
            CHAT,
            {"messages": [{"role": "tool", "content": "a", "tool_call_id": LONG}]},
            "messages.0.tool_call_id",
        ),
        (
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "id": LONG}]}]},
            "messages.0.tool_calls.0.id",
        ),
        (RESPONSE, {"previous_response_id": LONG}, "previous_response_id"),
        (
            RESPONSE,
            {"input": [{"role": "user", "content": "a", "id": LONG}]},
            "input.0.id",
        ),
        (
            RESPONSE,
            {"input": [{"type": "function_call", "call_id": LONG, "name": "f", "arguments": ""}]},
            "input.0.call_id",
        ),
        (
            RESPONSE,
            {"input": [{"type": "function_call_output", "call_id": LONG, "output": ""}]},
            "input.0.call_id",
        ),
        (COMPLETION, {"cache_salt": "x" * 1025}, "cache_salt"),
        *(
            (path, {"response_format": {"type": "json_schema", "json_schema": form}}, param)
            for form, param in (
                (
                    {"name": "f", "schema": {}, "description": "x" * 16_385},
                    "response_format.json_schema.description",
                ),
            )
            for path in (CHAT, COMPLETION)
        ),
        (
            RESPONSE,
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "f",
                        "schema": {},
                        "description": "x" * 16_385,
                    }
                }
            },
            "text.format.description",
        ),
    ],
)
async def test_other_names_and_ids_are_bounded_too(
    gateway: Gateway, path: str, body: dict[str, Any], param: str
) -> None:
    await check_refused(gateway, path, body, param, "characters; the maximum is")


@pytest.mark.parametrize("name", ["", "x" * 65, "a b"])
async def test_the_name_of_a_tool_or_a_format_has_at_most_64_letters(
    gateway: Gateway, name: str
) -> None:
    tool = {"type": "function", "function": {"name": name}}
    form = {"type": "json_schema", "json_schema": {"name": name, "schema": {}}}
    await check_refused(gateway, CHAT, {"tools": [tool]}, "tools.0.function.name", "{1,64}")
    for path in (CHAT, COMPLETION):
        param = "response_format.json_schema.name"
        await check_refused(gateway, path, {"response_format": form}, param, "{1,64}")
    functions = {"tools": [{"type": "function", "name": name}]}
    await check_refused(gateway, RESPONSE, functions, "tools.0.name", "{1,64}")


async def test_a_response_shows_and_stores_no_more_than_these_texts(gateway: Gateway) -> None:
    fields = {field: "x" * most for field, most in MOST.items() if field != "service_tier"}
    body = {**BASE[RESPONSE], **fields}
    shown = (await gateway.post(RESPONSE, body)).json()
    assert {field: shown[field] for field in fields} == fields
    assert gateway.runtime.responses.num_bytes < len(json.dumps(shown)) + 2000
