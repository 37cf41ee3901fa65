"""`POST /v1/responses/input_tokens` counts what a response would read."""

from typing import Any

import pytest

from server.http.headers import IGNORED_FIELDS
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
BODIES: list[dict[str, Any]] = [
    {"input": "Say hello."},
    {"input": "Say hello.", "instructions": "Be brief."},
    {"input": "Say hello.", "tools": [TOOL], "tool_choice": "none"},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]},
    {"input": "a", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
]


async def count(gateway: Gateway, body: dict[str, Any]) -> int:
    response = await gateway.post(f"{PATH}/input_tokens", body)
    assert response.status_code == 200, response.text
    assert response.json().keys() == {"object", "input_tokens"}
    assert response.json()["object"] == "response.input_tokens"
    number: int = response.json()["input_tokens"]
    return number


@pytest.mark.parametrize("body", BODIES)
async def test_it_is_the_input_of_the_usage(gateway: Gateway, body: dict[str, Any]) -> None:
    answer = (await gateway.post(PATH, {**body, "max_output_tokens": 2})).json()
    assert await count(gateway, body) == answer["usage"]["input_tokens"]
    more = {"input": "Go on.", "previous_response_id": answer["id"]}
    later = (await gateway.post(PATH, {**more, "max_output_tokens": 2})).json()
    assert await count(gateway, more) == later["usage"]["input_tokens"]


async def test_a_conversation_alone_is_counted_too(gateway: Gateway) -> None:
    response = (await gateway.post(PATH, {"input": "a", "max_output_tokens": 2})).json()
    assert await count(gateway, {"previous_response_id": response["id"]}) > 2


async def test_more_than_the_context_is_counted(gateway: Gateway) -> None:
    words = "word " * gateway.runtime.info.max_model_len
    assert await count(gateway, {"input": words}) > gateway.runtime.info.max_model_len


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "a", "conversation": "conv_1", "previous_response_id": "r"}, "conversation"),
        ({"input": "a", "previous_response_id": "resp_x"}, "previous_response_id"),
        ({"input": "a", "tools": [TOOL, TOOL]}, "tools.1.name"),
        ({"input": [{"role": "user", "content": "\ud800"}]}, "input.0"),
        ({"input": "a", "model": "none-such"}, "model"),
    ],
)
async def test_what_no_response_could_have_is_refused(
    gateway: Gateway, body: dict[str, Any], param: str
) -> None:
    response = await gateway.post(f"{PATH}/input_tokens", body)
    assert response.status_code == (404 if param == "model" else 400), response.text
    assert response.json()["error"]["param"].startswith(param)


async def test_what_does_not_count_is_named(start: StartGateway) -> None:
    body = {"input": "a", "truncation": "auto", "tools": [{"type": "web_search"}], "store": True}
    response = await (await start()).post(f"{PATH}/input_tokens", body)
    assert response.headers[IGNORED_FIELDS] == "store, tools.0, truncation"
    strict = await start(strict_fields=True)
    response = await strict.post(f"{PATH}/input_tokens", {"input": "a", "truncation": "auto"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "truncation")
