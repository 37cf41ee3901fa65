"""`POST /v1/responses/compact`: the user's messages, and a summary that the target writes."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from engine_adapter.seam.types import Delta, FinishReason, GenerationRequest
from server.http.headers import IGNORED_FIELDS
from server.openai.responses.compaction import REQUEST
from server.openai.responses.conversation import SUMMARIZED
from server.openai.responses.input_items import summary_of
from tests.server.gateway import Gateway

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello Ada."},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "4"},
    {"role": "user", "content": "What is 2+2?"},
]


async def compacted(gateway: Gateway, **body: Any) -> dict[str, Any]:
    response = await gateway.post(f"{PATH}/compact", {"max_output_tokens": 8, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def requests_of(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """What the engine gets from now on."""
    requests: list[GenerationRequest] = []
    generate = gateway.runtime.engine.generate

    def seen(request: GenerationRequest) -> Any:
        requests.append(request)
        return generate(request)

    monkeypatch.setattr(gateway.runtime.engine, "generate", seen)
    return requests


async def prompt_of(gateway: Gateway, request: GenerationRequest) -> str:
    return await gateway.runtime.renderer.decode(request.prompt_token_ids)


async def test_the_users_messages_stay_and_the_rest_is_summarized(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = requests_of(gateway, monkeypatch)
    answer = await compacted(gateway, input=CHAT, instructions="Be kind.")
    assert answer["object"] == "response.compaction"
    *messages, compaction = answer["output"]
    texts = [message["content"][0]["text"] for message in messages]
    assert texts == ["My name is Ada.", "What is 2+2?"]
    assert [message["role"] for message in messages] == ["user", "user"]
    assert compaction["type"] == "compaction"
    assert summary_of(compaction["encrypted_content"])
    assert answer["usage"]["output_tokens"] == 8
    assert answer["metrics"]["speculative_decoding"]
    prompt = await prompt_of(gateway, *requests)
    assert all(text in prompt for text in ("Be kind.", "Hello Ada.", "What is 2+2?", REQUEST))


async def test_the_model_reads_the_summary_in_place_of_the_conversation(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = (await compacted(gateway, input=CHAT))["output"]
    summary = summary_of(output[-1]["encrypted_content"])
    requests = requests_of(gateway, monkeypatch)
    body = {"input": [*output, {"role": "user", "content": "Who am I?"}], "max_output_tokens": 4}
    answer = (await gateway.post(PATH, body)).json()
    prompt = await prompt_of(gateway, *requests)
    assert f"{SUMMARIZED}\n\n{summary}" in prompt
    assert "Hello Ada." not in prompt
    # It is an item like any other: listed, continued, and summarized again.
    listed = (await gateway.client.get(f"{PATH}/{answer['id']}/input_items")).json()["data"]
    assert output[-1] in listed
    again = await compacted(gateway, previous_response_id=answer["id"])
    assert [item["type"] for item in again["output"]].count("compaction") == 1
    assert summary in await prompt_of(gateway, requests[-1])


async def test_a_stored_response_is_compacted_and_nothing_is_stored(gateway: Gateway) -> None:
    answer = (await gateway.post(PATH, {"input": "One.", "max_output_tokens": 4})).json()
    compaction = await compacted(gateway, previous_response_id=answer["id"])
    assert compaction["output"][0]["content"][0]["text"] == "One."
    assert (await gateway.client.get(f"{PATH}/{compaction['id']}")).status_code == 404
    assert (await gateway.client.get(f"{PATH}/{answer['id']}")).status_code == 200


async def test_what_agents_send_with_every_request_is_ignored_and_named(gateway: Gateway) -> None:
    body = {"input": CHAT, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True}
    body |= {"text": {"verbosity": "low"}, "reasoning": {"effort": "low"}, "max_output_tokens": 4}
    response = await gateway.post(f"{PATH}/compact", body)
    assert response.status_code == 200, response.text
    ignored = response.headers[IGNORED_FIELDS].split(", ")
    assert {"tools", "tool_choice", "parallel_tool_calls", "text"} <= set(ignored)


async def test_the_proposer_is_chosen_as_for_a_response(gateway: Gateway) -> None:
    answer = await compacted(gateway, input="a", spec_decode={"proposer": "ngram"})
    assert answer["metrics"]["speculative_decoding"]["proposer"] == "ngram"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "store": True}, "store"),
        ({"input": "a", "conversation": "conv_1"}, "conversation"),
        ({"input": "a", "previous_response_id": "resp_x"}, "previous_response_id"),
        ({"input": [CHAT[2]]}, "input.0"),
        ({"input": "word " * 5000}, "input"),
    ],
)
async def test_what_cannot_be_compacted_is_refused(
    gateway: Gateway, body: dict[str, Any], param: str
) -> None:
    response = await gateway.post(f"{PATH}/compact", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("content", ["", "not base64", "/w==", "YQ"])
async def test_a_summary_of_another_server_is_refused(gateway: Gateway, content: str) -> None:
    item = {"type": "compaction", "encrypted_content": content}
    response = await gateway.post(PATH, {"input": [item]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input.0.encrypted_content"


async def test_a_model_that_writes_no_summary_is_an_error(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def generate(request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(" \n", (5,), finish_reason=FinishReason.STOP)

    monkeypatch.setattr(gateway.runtime.engine, "generate", generate)
    response = await gateway.post(f"{PATH}/compact", {"input": "a"})
    assert response.status_code == 500
    assert response.json()["error"]["message"].startswith("The model wrote no summary.")
