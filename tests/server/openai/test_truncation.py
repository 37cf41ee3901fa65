"""`truncate_prompt_tokens`: which tokens of a prompt stay."""

from typing import Any

import pytest

from engine_adapter.seam.types import GenerationRequest
from server.openai.prompts import MAX_CHARS
from tests.server.gateway import Gateway, record_requests

IDS = list(range(100, 140))


async def kept(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> list[int]:
    seen: list[GenerationRequest] = record_requests(gateway, monkeypatch)
    response = await gateway.complete(IDS, max_tokens=4, **fields)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["prompt_tokens"] == len(seen[0].prompt_token_ids)
    return list(seen[0].prompt_token_ids)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({}, IDS),
        ({"truncate_prompt_tokens": 5}, IDS[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, IDS[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, IDS[:5]),
        ({"truncate_prompt_tokens": 40}, IDS),
        ({"truncate_prompt_tokens": 10**6}, IDS),
        ({"truncate_prompt_tokens": -1}, IDS),
        ({"truncation_side": "right"}, IDS),
    ],
)
async def test_the_last_tokens_stay_unless_the_right_side_is_cut(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], want: list[int]
) -> None:
    assert await kept(gateway, monkeypatch, **fields) == want


async def test_what_does_not_fit_beside_the_answer_is_cut(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = gateway.runtime.info.max_model_len
    long = (IDS * (context // len(IDS) + 1))[: context + 7]
    assert (await gateway.complete(long, max_tokens=4)).status_code == 400
    seen: list[GenerationRequest] = record_requests(gateway, monkeypatch)
    response = await gateway.complete(long, max_tokens=4, truncate_prompt_tokens=-1)
    assert response.status_code == 200
    assert list(seen[0].prompt_token_ids) == long[-(context - 4) :]
    response = await gateway.chat("word " * context, truncate_prompt_tokens=-1, max_tokens=9)
    assert response.status_code == 200
    assert len(seen[1].prompt_token_ids) == context - 9


async def test_a_chat_is_cut_after_it_is_rendered(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[GenerationRequest] = record_requests(gateway, monkeypatch)
    for fields in ({}, {"truncate_prompt_tokens": 4}):
        assert (await gateway.chat("Say hello to all.", **fields)).status_code == 200
    whole, cut = (request.prompt_token_ids for request in seen)
    assert cut == whole[-4:]


async def test_an_echo_has_the_tokens_that_stayed(gateway: Gateway) -> None:
    fields: dict[str, Any] = {"truncate_prompt_tokens": 3, "echo": True, "max_tokens": 0}
    body = (await gateway.complete("def area(radius): return", **fields, logprobs=0)).json()
    choice = body["choices"][0]
    assert body["usage"]["prompt_tokens"] == len(choice["logprobs"]["tokens"]) == 3
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


@pytest.mark.parametrize("value", [0, -2, "5", 1.5])
async def test_a_length_that_leaves_nothing_is_refused(gateway: Gateway, value: Any) -> None:
    for ask in (gateway.complete, gateway.chat):
        response = await ask(truncate_prompt_tokens=value)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "truncate_prompt_tokens"


async def test_a_text_that_takes_long_to_tokenize_is_refused_although_it_would_be_cut(
    gateway: Gateway,
) -> None:
    half = "word " * (MAX_CHARS // 10)
    for fields in ({"truncate_prompt_tokens": 4}, {"truncate_prompt_tokens": -1}):
        assert (await gateway.complete([half, half], max_tokens=1, **fields)).status_code == 200
        refused = (
            ("prompt", await gateway.complete([half, half, "a"], max_tokens=1, **fields)),
            ("messages", await gateway.chat(f"{half}{half}a", max_tokens=1, **fields)),
        )
        for param, response in refused:
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param)
            assert f"at most {MAX_CHARS}" in error["message"]
            assert error["code"] == "context_length_exceeded"
    # Token ids need no tokenizer.
    many = [7] * (MAX_CHARS // 10)
    assert (await gateway.complete(many, max_tokens=1, **fields)).status_code == 200


DESCRIBED = {
    "type": "function",
    "function": {"name": "f", "description": "word " * (MAX_CHARS // 5), "parameters": {}},
}
CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "f", "arguments": {"text": "word " * (MAX_CHARS // 5)}},
}
SHORT = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    "chat",
    [
        {"messages": [SHORT], "tools": [DESCRIBED]},
        {"messages": [SHORT, {"role": "assistant", "tool_calls": [CALL]}]},
    ],
    ids=["tools", "calls"],
)
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {}),
        ("/v1/chat/completions", {"truncate_prompt_tokens": 1, "tool_choice": "none"}),
    ],
)
async def test_tools_and_calls_count_as_text_of_a_chat(
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
    chat: dict[str, Any],
    path: str,
    fields: dict[str, Any],
) -> None:
    def tokenize(*_: Any) -> None:
        raise AssertionError("the text must not be tokenized")

    monkeypatch.setattr(gateway.runtime.renderer._encoder, "encode_rendered", tokenize)
    response = await gateway.post(path, {**chat, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages")
    assert f"at most {MAX_CHARS}" in error["message"]
