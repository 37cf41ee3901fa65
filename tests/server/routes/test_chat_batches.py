"""`POST /v1/chat/completions/batch`: several chats in one request; and `POST /invocations`."""

import json
from typing import Any

import pytest

from server.schema.generation_body import MAX_PROMPTS
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events
from tests.server.tool_bodies import TOOLS

PATH = "/v1/chat/completions/batch"
ANSWERS = {"first": "one", "second": "<think>Hm.</think>two"}
CHATS = [[{"role": "user", "content": prompt}] for prompt in ANSWERS]


@pytest.fixture
async def gateway(start: StartGateway) -> Gateway:
    return await start(reasoning_parser="deepseek_r1", engine_args={"fake_answers": ANSWERS})


def contents(choices: list[dict[str, Any]]) -> list[tuple[int, str, str | None]]:
    return [
        (choice["index"], message["content"], message.get("reasoning_content"))
        for choice in choices
        for message in [choice["message"]]
    ]


async def test_each_chat_has_a_choice(gateway: Gateway) -> None:
    body = {"messages": CHATS, "max_tokens": 50, "return_token_ids": True}
    whole = (await gateway.post(PATH, body)).json()
    assert contents(whole["choices"]) == [(0, "one", None), (1, "two", "Hm.")]
    assert whole["object"] == "chat.completion"
    alone = [
        (await gateway.post("/v1/chat/completions", {**body, "messages": chat})).json()
        for chat in CHATS
    ]
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [
        answer["prompt_token_ids"] for answer in alone
    ]
    for field in ("prompt_tokens", "completion_tokens"):
        assert whole["usage"][field] == sum(answer["usage"][field] for answer in alone)


async def test_choices_of_a_chat_follow_each_other(gateway: Gateway) -> None:
    answer = (await gateway.post(PATH, {"messages": CHATS, "n": 2, "max_tokens": 50})).json()
    texts = [text for _, text, _ in contents(answer["choices"])]
    assert texts == ["one", "one", "two", "two"]


async def test_a_stream_has_the_choices_of_all_chats(gateway: Gateway) -> None:
    body = {"messages": CHATS, "stream": True, "max_tokens": 50, "return_token_ids": True}
    texts, prompts = ["", ""], {}
    for chunk in events(await gateway.post(PATH, body)):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
            if "prompt_token_ids" in choice:
                prompts[choice["index"]] = choice["prompt_token_ids"]
    assert texts == ["one", "two"]
    whole = (await gateway.post(PATH, {**body, "stream": False})).json()
    assert [prompts[choice["index"]] for choice in whole["choices"]] == [
        choice["prompt_token_ids"] for choice in whole["choices"]
    ]


async def test_a_method_is_that_of_all_chats(gateway: Gateway) -> None:
    response = await gateway.post(PATH, {"messages": CHATS, "speculative_model": "ngram"})
    assert response.headers["x-specgate-spec-method"] == "ngram"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages.0"),
        ({"messages": CHATS[0]}, "messages.0"),
        ({"messages": [CHATS[0], [{"role": "user", "content": 5}]]}, "messages.1.0.content"),
        ({"messages": [CHATS[0], [{"role": "user", "content": "\ud800"}]]}, "messages.1.0.content"),
        ({"messages": [CHATS[0], [{"role": "user", "content": "x " * 9000}]]}, "messages.1"),
        ({"messages": [CHATS[0]] * (MAX_PROMPTS + 1)}, "messages"),
        ({"messages": [CHATS[0]] * 17, "n": 128}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, None),
    ],
)
async def test_a_fault_names_its_chat(
    gateway: Gateway, fields: dict[str, Any], param: str | None
) -> None:
    body = json.dumps({"messages": CHATS, **fields})
    response = await gateway.client.post(
        PATH, content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == (param or "tool_choice.function.name")


async def test_a_picture_needs_a_chat_of_its_own(gateway: Gateway) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = [CHATS[0], [{"role": "user", "content": [picture]}]]
    response = await gateway.post(PATH, {"messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages.1.0.content.0.image_url.url"


async def test_an_invocation_is_a_chat_or_a_completion(gateway: Gateway) -> None:
    chat = {"messages": CHATS[0], "max_tokens": 50}
    answer = (await gateway.post("/invocations", chat)).json()
    assert contents(answer["choices"]) == [(0, "one", None)]
    completion = {"prompt": "first", "max_tokens": 50}
    answer = (await gateway.post("/invocations", completion)).json()
    assert (answer["object"], answer["choices"][0]["text"]) == ("text_completion", "one")
    streamed = events(await gateway.post("/invocations", {**chat, "stream": True}))
    assert streamed[0]["object"] == "chat.completion.chunk"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"prompt": "a", "top_p": "x"}, "top_p", None),
        ({"messages": CHATS[0], "top_p": "x"}, "top_p", None),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", None),
    ],
)
async def test_a_fault_of_an_invocation_names_its_field(
    gateway: Gateway, body: dict[str, Any], param: str, code: str | None
) -> None:
    response = await gateway.post("/invocations", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
