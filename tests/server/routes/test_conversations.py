"""`/v1/conversations`: made, read, changed, and continued by responses."""

from typing import Any

import pytest
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItemList,
)

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway
from tests.server.response_events import checked, checked_events, text_of
from tests.server.routes.test_responses_stored import KEYS, bearer

PATH = "/v1/conversations"
RESPONSES = "/v1/responses"
USER = {"role": "user", "content": "One."}
SHORT: dict[str, Any] = {"max_output_tokens": 8, "temperature": 0}


async def created(gateway: Gateway, **body: Any) -> dict[str, Any]:
    response = await gateway.post(PATH, body)
    assert response.status_code == 200, response.text
    conversation: dict[str, Any] = response.json()
    Conversation.model_validate(conversation)
    return conversation


async def texts(gateway: Gateway, conversation_id: str) -> list[str]:
    """The texts of the items, the oldest first."""
    response = await gateway.client.get(
        f"{PATH}/{conversation_id}/items", params={"order": "asc", "limit": 100}
    )
    assert response.status_code == 200, response.text
    ConversationItemList.model_validate(response.json())
    return [part["text"] for item in response.json()["data"] for part in item["content"]]


async def respond(gateway: Gateway, **body: Any) -> dict[str, Any]:
    response = await gateway.post(RESPONSES, {**SHORT, **body})
    assert response.status_code == 200, response.text
    return checked(response.json())


async def test_it_is_made_read_changed_and_deleted(gateway: Gateway) -> None:
    conversation = await created(gateway, items=[USER], metadata={"topic": "a"})
    assert (conversation["object"], conversation["metadata"]) == ("conversation", {"topic": "a"})
    path = f"{PATH}/{conversation['id']}"
    assert (await gateway.client.get(path)).json() == conversation
    changed = (await gateway.post(path, {"metadata": {"b": "c"}})).json()
    assert changed == {**conversation, "metadata": {"b": "c"}}
    assert (await gateway.post(path, {"metadata": None})).json()["metadata"] == {}
    assert await texts(gateway, conversation["id"]) == ["One."]
    deleted = (await gateway.client.delete(path)).json()
    ConversationDeletedResource.model_validate(deleted)
    assert (deleted["object"], deleted["deleted"]) == ("conversation.deleted", True)
    error = (await gateway.client.get(path)).json()["error"]
    assert (error["param"], error["code"]) == ("conversation_id", "conversation_not_found")
    assert len(gateway.runtime.responses) == 0
    assert gateway.runtime.responses.num_bytes == 0


async def test_its_items_are_added_listed_read_and_deleted(gateway: Gateway) -> None:
    path = f"{PATH}/{(await created(gateway))['id']}"
    items = [{"role": "user", "content": str(number)} for number in range(30)]
    added = (await gateway.post(f"{path}/items", {"items": items})).json()
    ConversationItemList.model_validate(added)
    assert len(added["data"]) == 30
    newest = (await gateway.client.get(f"{path}/items")).json()
    assert newest["data"] == added["data"][::-1][:20]
    assert newest["has_more"]
    rest = (await gateway.client.get(f"{path}/items", params={"after": newest["last_id"]})).json()
    assert rest["data"] == added["data"][::-1][20:]
    item = added["data"][3]
    assert (await gateway.client.get(f"{path}/items/{item['id']}")).json() == item
    conversation = (await gateway.client.delete(f"{path}/items/{item['id']}")).json()
    Conversation.model_validate(conversation)
    for method in ("GET", "DELETE"):
        response = await gateway.client.request(method, f"{path}/items/{item['id']}")
        assert response.json()["error"]["code"] == "item_not_found"
    assert await texts(gateway, conversation["id"]) == [str(n) for n in range(30) if n != 3]


@pytest.mark.parametrize("form", ["id", "object"])
@pytest.mark.parametrize("kind", ["whole", "stream", "background"])
async def test_responses_continue_it(gateway: Gateway, form: str, kind: str) -> None:
    conversation = await created(gateway, items=[USER])
    name = conversation["id"]
    reference = name if form == "id" else {"id": name}
    first = await respond(gateway, input="Two.", conversation=reference, store=False)
    assert first["conversation"] == {"id": name}
    body = {**SHORT, "input": "Three.", "conversation": reference, "instructions": "Be brief."}
    if kind == "whole":
        second = await respond(gateway, **body)
    else:
        body |= {"stream": True, "background": kind == "background"}
        second = checked_events((await gateway.post(RESPONSES, body)).text)[-1]["response"]
    assert await texts(gateway, name) == [
        *("One.", "Two.", text_of(first)),
        *("Three.", text_of(second)),
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One."},
        {"role": "user", "content": "Two."},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "Three."},
    ]
    chat = {"messages": messages, "max_tokens": 8, "temperature": 0}
    answer = (await gateway.post("/v1/chat/completions", chat)).json()
    assert second["usage"]["input_tokens"] == answer["usage"]["prompt_tokens"]
    assert text_of(second) == answer["choices"][0]["message"]["content"]
    counted = {"conversation": reference, "input": "Four."}
    count = (await gateway.post(f"{RESPONSES}/input_tokens", counted)).json()["input_tokens"]
    third = await respond(gateway, input="Four.", conversation=reference)
    assert count == third["usage"]["input_tokens"]


async def test_calls_of_a_conversation_need_their_outputs(gateway: Gateway) -> None:
    tool = {"type": "function", "name": "now"}
    name = (await created(gateway))["id"]
    forced = {"tools": [tool], "tool_choice": "required", "max_output_tokens": 100}
    first = await respond(gateway, input="Call.", conversation=name, **forced)
    call = first["output"][-1]
    body = {"input": "And now?", "conversation": name}
    error = (await gateway.post(RESPONSES, body)).json()["error"]
    assert (error["param"], "has no output" in error["message"]) == ("conversation", True)
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "noon"}
        for item in first["output"]
    ]
    await respond(gateway, input=outputs, conversation=name)
    assert call["call_id"]
    await respond(gateway, **body)


async def test_a_response_that_fails_adds_nothing(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_fail_prompt": "word", "fake_trouble_after_tokens": 2})
    name = (await created(gateway, items=[USER]))["id"]
    assert (await gateway.post(RESPONSES, {"input": "word", "conversation": name})).is_error
    assert await texts(gateway, name) == ["One."]


async def test_it_belongs_to_its_key(start: StartGateway) -> None:
    gateway = await start(**KEYS, admin_key=("admin",))
    headers = bearer("one")
    conversation = (await gateway.post(PATH, {"items": [USER]}, headers=headers)).json()
    path = f"{PATH}/{conversation['id']}"
    (item,) = (await gateway.client.get(f"{path}/items", headers=headers)).json()["data"]
    for key in ("two", "admin"):
        for method, where, body in (
            ("GET", path, None),
            ("POST", path, {"metadata": {}}),
            ("DELETE", path, None),
            ("GET", f"{path}/items", None),
            ("POST", f"{path}/items", {"items": [USER]}),
            ("GET", f"{path}/items/{item['id']}", None),
            ("DELETE", f"{path}/items/{item['id']}", None),
            ("POST", RESPONSES, {"input": "a", "conversation": conversation["id"]}),
        ):
            response = await gateway.client.request(method, where, json=body, headers=bearer(key))
            assert response.json()["error"]["code"] == "conversation_not_found", where
            assert response.status_code == 404
    assert (await gateway.client.get(path, headers=headers)).status_code == 200


async def test_a_conversation_is_no_response(gateway: Gateway) -> None:
    name = (await created(gateway))["id"]
    error = (await gateway.client.get(f"{RESPONSES}/{name}")).json()["error"]
    assert error["code"] == "response_not_found"
    response = await respond(gateway, input="a")
    error = (await gateway.client.get(f"{PATH}/{response['id']}")).json()["error"]
    assert error["code"] == "conversation_not_found"
    body = {"input": "a", "previous_response_id": name}
    error = (await gateway.post(RESPONSES, body)).json()["error"]
    assert error["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATH, {"items": [{"role": "tool", "content": "a"}]}, "items.0.role"),
        (PATH, {"items": [{"role": "user", "content": "\ud800"}]}, "items.0"),
        (PATH, {"items": [USER] * 4097}, "items"),
        (PATH, {"items": [{**USER, "id": "a"}] * 2}, "items.1.id"),
        (PATH, {"metadata": {"a": "b" * 513}}, "metadata"),
        (PATH, {"metadata": {"a": "\ud800"}}, "metadata"),
        (PATH, {"unknown": 1}, "unknown"),
        (f"{PATH}/%s", {}, "metadata"),
        (f"{PATH}/%s/items", {}, "items"),
        (f"{PATH}/%s/items", {"items": []}, "items"),
        (f"{PATH}/%s/items", {"items": [{**USER, "id": "first"}]}, "items.0.id"),
        (
            RESPONSES,
            {"input": "a", "conversation": "%s", "previous_response_id": "r"},
            "conversation",
        ),
        (RESPONSES, {"input": "a", "conversation": {"id": ""}}, "conversation.id"),
        (RESPONSES, {"input": "a", "conversation": 7}, "conversation"),
        (RESPONSES, {"input": [{**USER, "id": "first"}], "conversation": "%s"}, "input.0.id"),
    ],
)
async def test_what_cannot_be_stored_is_refused(
    gateway: Gateway, path: str, body: dict[str, Any], param: str
) -> None:
    name = (await created(gateway, items=[{**USER, "id": "first"}]))["id"]
    if body.get("conversation") == "%s":
        body = {**body, "conversation": name}
    response = await gateway.post(path % name if "%s" in path else path, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)
    assert await texts(gateway, name) == ["One."]


async def test_its_items_have_a_bound(gateway: Gateway) -> None:
    name = (await created(gateway, items=[USER] * 4096))["id"]
    for path, body, param in (
        (f"{PATH}/{name}/items", {"items": [USER]}, "items"),
        (RESPONSES, {"input": "a", "conversation": name}, "input"),
        (f"{RESPONSES}/input_tokens", {"input": "a", "conversation": name}, "input"),
    ):
        error = (await gateway.post(path, body)).json()["error"]
        assert error["param"] == param
        assert (
            "4,097 items with those of the conversation; the maximum is 4,096" in error["message"]
        )


async def test_it_counts_in_the_store(start: StartGateway) -> None:
    gateway = await start(max_stored_responses=2, max_stored_response_bytes=5000)
    large = [{"role": "user", "content": "a" * 5000}]
    error = (await gateway.post(PATH, {"items": large})).json()["error"]
    assert (error["param"], "--max-stored-response-bytes" in error["message"]) == ("items", True)
    first = await created(gateway)
    error = (await gateway.post(f"{PATH}/{first['id']}/items", {"items": large})).json()["error"]
    assert error["param"] == "items"
    await created(gateway)
    await created(gateway)
    assert len(gateway.runtime.responses) == 2
    assert (await gateway.client.get(f"{PATH}/{first['id']}")).status_code == 404
    none = await start(max_stored_responses=0)
    assert "--max-stored-responses" in (await none.post(PATH, {})).json()["error"]["message"]


async def test_one_without_room_for_an_answer_is_gone(start: StartGateway) -> None:
    gateway = await start(max_stored_response_bytes=2000)
    name = (await created(gateway, items=[USER]))["id"]
    body = {**SHORT, "input": "a" * 1500, "conversation": name, "store": False}
    assert (await gateway.post(RESPONSES, body)).status_code == 200
    error = (await gateway.client.get(f"{PATH}/{name}")).json()["error"]
    assert error["code"] == "conversation_not_found"


async def test_requests_are_limited_as_others_of_the_key(start: StartGateway) -> None:
    gateway = await start(max_key_requests_per_minute=1)
    name = (await created(gateway))["id"]
    for path, body in ((PATH, {}), (f"{PATH}/{name}", {"metadata": {}})):
        response = await gateway.post(path, body)
        assert (response.status_code, response.json()["error"]["code"]) == (
            429,
            "rate_limit_exceeded",
        )
