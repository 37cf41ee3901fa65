"""Stored responses: read, continued, listed, deleted, and hidden from other keys."""

from dataclasses import replace
from typing import Any

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway
from tests.server.response_events import checked, checked_events, checked_list, text_of

PATH = "/v1/responses"
SHORT: dict[str, Any] = {"max_output_tokens": 8, "temperature": 0}


async def respond(gateway: Gateway, given: Any, **fields: Any) -> dict[str, Any]:
    response = await gateway.post(PATH, {**SHORT, "input": given, **fields})
    assert response.status_code == 200, response.text
    return checked(response.json())


async def refused(gateway: Gateway, method: str, path: str, status: int, **kwargs: Any) -> Any:
    """The error of a request without a body."""
    response = await gateway.client.request(method, path, **kwargs)
    assert response.status_code == status, response.text
    return response.json()["error"]


async def continued(gateway: Gateway, response_id: str, **fields: Any) -> Any:
    """The error of a request that continues a response."""
    body = {**SHORT, "input": "Go on.", "previous_response_id": response_id, **fields}
    response = await gateway.post(PATH, body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


async def test_a_response_is_read_again_as_it_was(gateway: Gateway) -> None:
    whole = await respond(gateway, "Hello")
    assert (await gateway.client.get(f"{PATH}/{whole['id']}")).json() == whole
    streamed = await gateway.post(PATH, {**SHORT, "input": "Hello", "stream": True})
    last = checked_events(streamed.text)[-1]["response"]
    assert (await gateway.client.get(f"{PATH}/{last['id']}")).json() == last


async def test_store_false_is_not_stored(gateway: Gateway) -> None:
    whole = await respond(gateway, "Hello", store=False)
    error = await refused(gateway, "GET", f"{PATH}/{whole['id']}", 404)
    assert (error["param"], error["code"]) == ("response_id", "response_not_found")
    error = await continued(gateway, whole["id"])
    assert error["code"] == "previous_response_not_found"


async def test_a_continued_response_has_the_whole_conversation(gateway: Gateway) -> None:
    first = await respond(gateway, "One.", instructions="Be brief.")
    second = await respond(
        gateway, [{"role": "user", "content": "Two."}], previous_response_id=first["id"]
    )
    assert second["previous_response_id"] == first["id"]
    third = await respond(
        gateway, "Three.", previous_response_id=second["id"], instructions="Be long."
    )
    # Instructions are not carried over.
    messages = [
        {"role": "system", "content": "Be long."},
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "Two."},
        {"role": "assistant", "content": text_of(second)},
        {"role": "user", "content": "Three."},
    ]
    chat = {"messages": messages, "max_tokens": 8, "temperature": 0}
    answer = (await gateway.post("/v1/chat/completions", chat)).json()
    assert text_of(third) == answer["choices"][0]["message"]["content"]
    assert third["usage"]["input_tokens"] == answer["usage"]["prompt_tokens"]


async def test_two_responses_can_continue_the_same_one(gateway: Gateway) -> None:
    first = await respond(gateway, "One.")
    left = await respond(gateway, "Two.", previous_response_id=first["id"])
    right = await respond(gateway, "Two.", previous_response_id=first["id"])
    assert text_of(left) == text_of(right)
    assert left["id"] != right["id"]


async def test_the_input_of_a_response_is_listed_newest_first(gateway: Gateway) -> None:
    first = await respond(gateway, [{"role": "user", "content": "One."}])
    second = await respond(gateway, "Two.", previous_response_id=first["id"])
    path = f"{PATH}/{second['id']}/input_items"
    page = (await gateway.client.get(path)).json()
    items = checked_list(page)
    texts = [item["content"][0]["text"] for item in items]
    assert texts == ["Two.", text_of(first), "One."]
    assert (page["first_id"], page["last_id"]) == (items[0]["id"], items[2]["id"])
    assert page["has_more"] is False
    ascending = (await gateway.client.get(path, params={"order": "asc"})).json()["data"]
    assert ascending == items[::-1]


async def test_items_are_listed_in_pages(gateway: Gateway) -> None:
    given = [{"role": "user", "content": str(i)} for i in range(25)]
    whole = await respond(gateway, given)
    path = f"{PATH}/{whole['id']}/input_items"
    first = (await gateway.client.get(path, params={"order": "asc"})).json()
    assert len(first["data"]) == 20
    assert first["has_more"] is True
    query: dict[str, Any] = {"order": "asc", "after": first["last_id"], "limit": 5}
    rest = (await gateway.client.get(path, params=query)).json()
    assert rest["has_more"] is False
    texts = [item["content"][0]["text"] for item in first["data"] + rest["data"]]
    assert texts == [str(i) for i in range(25)]
    query["after"] = rest["last_id"]
    empty = (await gateway.client.get(path, params=query)).json()
    assert (empty["data"], empty["has_more"], empty["first_id"]) == ([], False, "")


async def test_items_of_every_kind_are_listed_in_full(gateway: Gateway) -> None:
    given = [
        {"role": "user", "content": "Add."},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "2"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Thanks."},
    ]
    whole = await respond(gateway, given)
    path = f"{PATH}/{whole['id']}/input_items"
    items = checked_list((await gateway.client.get(path, params={"order": "asc"})).json())
    assert [item["type"] for item in items] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "message",
        "message",
    ]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "msg_x"}, "after"),
        ({"before": "msg_x"}, "before"),
    ],
)
async def test_a_wrong_query_is_named(gateway: Gateway, query: Any, param: str) -> None:
    whole = await respond(gateway, "Hello")
    path = f"{PATH}/{whole['id']}/input_items"
    assert (await refused(gateway, "GET", path, 400, params=query))["param"] == param


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"stream": "true"}, "stream"),
        ({"starting_after": "3"}, "starting_after"),
        ({"include[]": "everything"}, "include[].0"),
        ({"include[]": "message.output_text.logprobs"}, "include[]"),
    ],
)
async def test_a_read_that_cannot_be_honoured_is_refused(
    gateway: Gateway, query: Any, param: str
) -> None:
    whole = await respond(gateway, "Hello")
    error = await refused(gateway, "GET", f"{PATH}/{whole['id']}", 400, params=query)
    assert error["param"] == param


async def test_a_conversation_reads_neither_formats_nor_log_probabilities(gateway: Gateway) -> None:
    """They can be half a megabyte of JSON for each response of a chain."""
    schema = {"type": "string", "enum": [f"{i}" for i in range(5000)]}
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 5}
    first = await respond(gateway, "One.", text=form, **logprobs)
    store = gateway.runtime.responses
    (shelf,) = store._shelves.values()
    stored = store.find(first["id"], "")
    assert stored is not None
    assert len(stored.body) > 40_000
    assert len(stored.items) + len(stored.output) < 1000
    shelf.entries[first["id"]] = replace(stored, body=b"not read")
    second = await respond(gateway, "Two.", previous_response_id=first["id"])
    path = f"{PATH}/{second['id']}/input_items"
    [*_, question] = (await gateway.client.get(path, params={"order": "asc"})).json()["data"]
    assert question["content"][0]["text"] == "Two."


async def test_log_probabilities_can_be_read_again(gateway: Gateway) -> None:
    logprobs = "message.output_text.logprobs"
    whole = await respond(gateway, "Hello", include=[logprobs])
    query = {"include[]": logprobs}
    assert (await gateway.client.get(f"{PATH}/{whole['id']}", params=query)).json() == whole


async def test_a_deleted_response_is_gone_and_not_continued(gateway: Gateway) -> None:
    first = await respond(gateway, "One.")
    second = await respond(gateway, "Two.", previous_response_id=first["id"])
    path = f"{PATH}/{first['id']}"
    answer = (await gateway.client.delete(path)).json()
    assert answer == {"id": first["id"], "object": "response", "deleted": True}
    await refused(gateway, "GET", path, 404)
    await refused(gateway, "DELETE", path, 404)
    error = await continued(gateway, second["id"])
    assert (error["param"], error["code"]) == (
        "previous_response_id",
        "previous_response_not_found",
    )
    assert first["id"] in error["message"]
    await refused(gateway, "GET", f"{PATH}/{second['id']}/input_items", 404)
    # The response itself is whole.
    assert (await gateway.client.get(f"{PATH}/{second['id']}")).json() == second


async def test_only_a_response_in_the_background_can_be_cancelled(gateway: Gateway) -> None:
    whole = await respond(gateway, "Hello")
    error = await refused(gateway, "POST", f"{PATH}/{whole['id']}/cancel", 400)
    assert error["param"] == "response_id"
    assert "background" in error["message"]
    error = await refused(gateway, "POST", f"{PATH}/resp_x/cancel", 404)
    assert error["code"] == "response_not_found"


async def test_the_error_of_an_unknown_id_says_what_is_kept(start: StartGateway) -> None:
    gateway = await start(max_stored_responses=2, max_stored_response_bytes=100_000)
    bodies = [await respond(gateway, f"Number {i}.") for i in range(3)]
    error = await refused(gateway, "GET", f"{PATH}/{bodies[0]['id']}", 404)
    for words in ("at most 2 responses", "100000 bytes", "--max-stored-responses"):
        assert words in error["message"]
    assert "at most 2 responses" in (await continued(gateway, bodies[0]["id"]))["message"]
    for kept in bodies[1:]:
        assert (await gateway.client.get(f"{PATH}/{kept['id']}")).status_code == 200


async def test_the_store_is_bounded_in_bytes(start: StartGateway) -> None:
    gateway = await start(max_stored_response_bytes=20_000)
    for i in range(12):
        await respond(gateway, f"{i} " + "word " * 800)
        assert gateway.runtime.responses.num_bytes <= 20_000
    assert 1 <= len(gateway.runtime.responses) <= 4


KEYS: dict[str, Any] = {"api_key": ("one", "two"), "named_api_key": {"team": "three"}}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_key_that_stores_much_drops_none_of_another_ones(start: StartGateway) -> None:
    gateway = await start(**KEYS, max_stored_responses=10, max_stored_response_bytes=60_000)

    async def ask(key: str, **more: Any) -> dict[str, Any]:
        response = await gateway.post(PATH, {**SHORT, **more}, headers=bearer(key))
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    first = await ask("one", input="Hello")
    second = await ask("one", input="Go on.", previous_response_id=first["id"])
    assert gateway.sample("specgate_stored_responses") == 2
    for number in range(15):
        await ask("two", input=f"{number}")
    assert gateway.sample("specgate_stored_responses") == 10
    for number in range(8):
        await ask("two", input=f"{number} " + "word " * 1500)
        assert (gateway.sample("specgate_stored_response_bytes") or 0) <= 60_000
    path = f"{PATH}/{first['id']}"
    assert (await gateway.client.get(path, headers=bearer("one"))).json() == first
    await ask("one", input="Go on.", previous_response_id=second["id"])


async def test_a_response_belongs_to_the_key_that_made_it(start: StartGateway) -> None:
    gateway = await start(**KEYS, admin_key=("admin",))
    body = {**SHORT, "input": "Hello"}
    made = (await gateway.post(PATH, body, headers=bearer("one"))).json()
    path = f"{PATH}/{made['id']}"
    assert (await gateway.client.get(path, headers=bearer("one"))).json() == made
    for key in ("two", "three", "admin"):
        for method, where in (
            ("GET", path),
            ("DELETE", path),
            ("POST", f"{path}/cancel"),
            ("GET", f"{path}/input_items"),
        ):
            error = await refused(gateway, method, where, 404, headers=bearer(key))
            assert error["code"] == "response_not_found"
        body = {**SHORT, "input": "Go on.", "previous_response_id": made["id"]}
        answer = await gateway.post(PATH, body, headers=bearer(key))
        assert answer.json()["error"]["code"] == "previous_response_not_found"
    await refused(gateway, "GET", path, 401)
    assert (await gateway.client.delete(path, headers=bearer("one"))).status_code == 200


async def test_without_keys_callers_are_not_told_apart(gateway: Gateway) -> None:
    body = {**SHORT, "input": "Hello"}
    made = (await gateway.post(PATH, body, headers=bearer("none"))).json()
    assert (await gateway.client.get(f"{PATH}/{made['id']}")).json() == made


async def test_a_conversation_that_is_too_long_is_refused_or_truncated(
    start: StartGateway,
) -> None:
    gateway = await start(max_model_len=400)
    given: list[dict[str, str]] = []
    for i in range(30):
        given += [
            {"role": "user", "content": f"Question {i}: what is {i} and {i}?"},
            {"role": "assistant", "content": f"It is {i + i}, as you know."},
        ]
    given.append({"role": "user", "content": "And the last?"})
    body = {**SHORT, "input": given, "instructions": "Be brief."}
    error = (await gateway.post(PATH, body)).json()["error"]
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    cut = await respond(gateway, given, instructions="Be brief.", truncation="auto")
    assert 250 < cut["usage"]["input_tokens"] <= 392
    # It is the longest end of the conversation that fits and begins with a user.
    for begin in range(0, len(given), 2):
        own = {**SHORT, "input": given[begin:], "instructions": "Be brief."}
        answer = await gateway.post(PATH, own)
        if answer.status_code == 200:
            assert answer.json()["usage"]["input_tokens"] == cut["usage"]["input_tokens"]
            assert text_of(answer.json()) == text_of(cut)
            break
    # All of its items are listed.
    path = f"{PATH}/{cut['id']}/input_items"
    page = (await gateway.client.get(path, params={"limit": 100})).json()
    assert len(page["data"]) == len(given)


async def test_what_does_not_fit_by_itself_is_refused_with_truncation_too(
    start: StartGateway,
) -> None:
    gateway = await start(max_model_len=100)
    given = [{"role": "user", "content": "a"}, {"role": "user", "content": "word " * 200}]
    body = {**SHORT, "input": given, "truncation": "auto"}
    error = (await gateway.post(PATH, body)).json()["error"]
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
