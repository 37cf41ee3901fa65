"""`POST /v1/chat/completions`: shapes, messages and bad input."""

from collections.abc import Sequence
from typing import Any

import pytest

from server.openai.logprobs import chat_logprobs
from tests.server.gateway import MODEL, Gateway, events

USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}

BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages.0"),
    ({"messages": [USER, {"content": "hi"}]}, "messages.1.role"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0.image_url.url"),
    ({"messages": [USER, {"role": "assistant", "content": [IMAGE]}]}, "messages.1"),
    (
        {"messages": [{"role": "user", "content": [{"type": "file"}]}]},
        "messages.0.content.0.type",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": "half \ud800"}]}, "messages.0.content"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
    ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
    ({"max_tokens": 100_000}, "max_tokens"),
    ({"min_tokens": 100_000}, "min_tokens"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"n": 0}, "n"),
]
"""Refused fields, and the field that the error names."""


async def test_a_response_has_openais_format(gateway: Gateway) -> None:
    response = await gateway.chat(max_tokens=5)
    body = response.json()
    assert response.status_code == 200
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", MODEL)
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["message"]["refusal"] is None
    assert choice["logprobs"] is None
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
    assert body["usage"]["completion_tokens"] == 5


async def test_a_stream_opens_with_the_role_and_has_the_same_text(gateway: Gateway) -> None:
    whole = (await gateway.chat(max_tokens=20, temperature=0)).json()
    chunks = events(await gateway.chat(max_tokens=20, temperature=0, stream=True))
    first, *rest = [chunk["choices"][0] for chunk in chunks]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert first["finish_reason"] is None
    text = "".join(choice["delta"].get("content", "") for choice in rest)
    assert text == whole["choices"][0]["message"]["content"]
    assert all("role" not in choice["delta"] for choice in rest)
    assert [c["finish_reason"] for c in rest] == [None] * (len(rest) - 1) + ["length"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["metrics"] == whole["metrics"]


async def test_every_choice_opens_with_its_role(gateway: Gateway) -> None:
    chunks = events(await gateway.chat(max_tokens=4, n=3, stream=True))
    for index in range(3):
        deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert len(deltas) > 1
    assert sum("metrics" in chunk for chunk in chunks) == 1
    assert "metrics" in chunks[-1]


async def test_usage_chunk_ends_the_stream(gateway: Gateway) -> None:
    options = {"include_usage": True}
    *chunks, last = events(await gateway.chat(max_tokens=4, stream=True, stream_options=options))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 4)
    assert "speculative_decoding" in last["metrics"]
    assert "speculative_decoding" in chunks[-1]["choices"][0]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_have_bytes_and_alternatives(gateway: Gateway, stream: bool) -> None:
    response = await gateway.chat(max_tokens=6, logprobs=True, top_logprobs=2, stream=stream)
    if stream:
        parts = [chunk["choices"][0]["logprobs"] for chunk in events(response)]
        content = [entry for part in parts if part is not None for entry in part["content"]]
    else:
        logprobs = response.json()["choices"][0]["logprobs"]
        assert logprobs["refusal"] is None
        content = logprobs["content"]
    assert len(content) == 6
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 2
        for token in (entry, *entry["top_logprobs"]):
            partial = "\ufffd" in token["token"]
            assert token["bytes"] == (None if partial else list(token["token"].encode()))


async def test_logprobs_without_alternatives(gateway: Gateway) -> None:
    choice = (await gateway.chat(max_tokens=3, logprobs=True)).json()["choices"][0]
    assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[], [], []]


async def test_parts_are_joined_and_developer_is_system(gateway: Gateway) -> None:
    async def tokens(*messages: dict[str, Any]) -> list[int]:
        response = await gateway.post("/tokenize", {"messages": list(messages)})
        ids: list[int] = response.json()["tokens"]
        return ids

    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert await tokens({"role": "user", "content": parts}) == await tokens(
        {"role": "user", "content": "one\ntwo"}
    )
    assert await tokens({"role": "developer", "content": "be brief"}, USER) == await tokens(
        {"role": "system", "content": "be brief"}, USER
    )


async def test_chat_runs_to_its_own_end_without_a_limit(gateway: Gateway) -> None:
    body = (await gateway.chat()).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] > 16


async def test_both_limits_are_accepted_if_they_are_equal(gateway: Gateway) -> None:
    body = (await gateway.chat(max_tokens=3, max_completion_tokens=3)).json()
    assert body["usage"]["completion_tokens"] == 3


async def test_bad_field_is_a_400_that_names_it(gateway: Gateway) -> None:
    for fields, param in BAD_FIELDS:
        response = await gateway.post("/v1/chat/completions", {"messages": [USER], **fields})
        error = response.json()["error"]
        assert response.status_code == 400, (fields, error)
        assert error["param"] == param, (fields, error)


async def test_messages_longer_than_the_context(gateway: Gateway) -> None:
    response = await gateway.chat("word " * gateway.runtime.info.max_model_len)
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


async def test_log_probabilities_of_a_whole_answer_are_encoded_when_they_come(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a choice at its end would be hundreds of thousands, for which everybody waits."""
    encoded: list[int] = []

    def counted(tokens: Sequence[Any], num_top: int, **options: Any) -> dict[str, Any]:
        encoded.append(len(tokens))
        return chat_logprobs(tokens, num_top, **options)

    monkeypatch.setattr("server.openai.chat_shape.chat_logprobs", counted)
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 200, "ignore_eos": True, "n": 2}
    response = await gateway.chat(**fields)
    for choice in response.json()["choices"]:
        assert choice["logprobs"]["refusal"] is None
        assert len(choice["logprobs"]["content"]) == 200
        assert all(len(entry["top_logprobs"]) == 3 for entry in choice["logprobs"]["content"])
    assert sum(encoded) == 400
    assert max(encoded) < 50
