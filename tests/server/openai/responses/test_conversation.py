"""Items become the messages of a chat: one message for what a model wrote at once."""

from typing import Any

import pytest

from server.errors import InvalidField
from server.openai.responses.conversation import Source, turns
from server.openai.responses.input_items import Item, input_items
from server.schema.responses import ResponsesRequest


def items_of(given: Any) -> list[Item]:
    """The items of a body's input."""
    return input_items(ResponsesRequest.model_validate({"input": given}).input)


def messages(given: Any) -> list[dict[str, Any]]:
    """The messages of a body's input, their content as one text."""
    own = [Source(item, f"input.{i}") for i, item in enumerate(items_of(given))]
    found = [turn.message for turn in turns(own)]
    for message in found:
        if isinstance(message["content"], list):
            message["content"] = "|".join(part["text"] for part in message["content"])
    return found


USER = {"role": "user", "content": "Add."}
REASONING = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "t"}],
}
ANSWER = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "status": "completed",
    "content": [{"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}],
}


def call(call_id: str) -> Item:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": '{"x":1}'}


def output(call_id: str, value: Any = "2") -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def test_a_text_is_a_users_message() -> None:
    assert messages("Hello") == [{"role": "user", "content": "Hello"}]


def test_messages_of_every_role_and_part() -> None:
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    given = [
        {"role": "system", "content": "s"},
        {"type": "message", "role": "developer", "content": "d"},
        {"role": "user", "content": parts},
        refusal,
    ]
    assert messages(given) == [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "a|b"},
        {"role": "assistant", "content": "No."},
    ]


def test_reasoning_text_and_calls_are_one_message() -> None:
    given = [
        USER,
        REASONING,
        ANSWER,
        call("a"),
        call("b"),
        output("a"),
        output("b", [{"type": "input_text", "text": "3"}]),
    ]
    function = {"name": "add", "arguments": '{"x":1}'}
    calls = [{"id": name, "type": "function", "function": function} for name in "ab"]
    assert messages(given)[1:] == [
        {"role": "assistant", "content": "ok", "reasoning_content": "t", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "2"},
        {"role": "tool", "tool_call_id": "b", "content": "3"},
    ]


def test_a_new_answer_begins_with_reasoning_or_a_second_text() -> None:
    given = [
        USER,
        ANSWER,
        ANSWER,
        REASONING,
        ANSWER,
        call("a"),
        output("a"),
        call("b"),
        output("b"),
    ]
    found = messages(given)
    assert [message["role"] for message in found] == [
        *("user", "assistant", "assistant", "assistant", "tool", "assistant", "tool"),
    ]
    assert [message.get("reasoning_content") for message in found[1:4]] == [None, None, "t"]
    assert found[5]["content"] is None


def test_reasoning_without_text_is_left_out() -> None:
    assert messages([USER, {"type": "reasoning", "id": "rs_1", "summary": []}]) == messages([USER])


def test_a_summary_stands_for_reasoning_that_is_not_there() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    assert messages([USER, summary, ANSWER])[1]["reasoning_content"] == "s"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([USER, output("a")], "input.1.call_id"),
        ([USER, call("a"), output("b")], "input.2.call_id"),
        ([USER, call("a"), output("a"), output("a")], "input.3.call_id"),
        ([USER, call("a"), call("b"), output("a")], "input.2"),
    ],
)
def test_a_call_and_its_output_need_each_other(given: Any, param: str) -> None:
    with pytest.raises(InvalidField) as refused:
        messages(given)
    assert refused.value.param == param


def test_items_keep_their_ids_and_get_new_ones() -> None:
    found = items_of([USER, ANSWER, call("a"), output("a"), REASONING])
    assert [item["id"].partition("_")[0] for item in found] == ["msg", "msg", "fc", "fco", "rs"]
    assert found[1]["id"] == "msg_1"
    assert len({item["id"] for item in found}) == 5
    assert {item["status"] for item in found} == {"completed"}
    assert found[0]["content"] == [{"type": "input_text", "text": "Add."}]
    assert found[1]["content"] == [{"type": "output_text", "text": "ok", "annotations": []}]


def test_reasoning_that_only_its_author_can_read_is_refused() -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
    with pytest.raises(InvalidField, match="leave the item out") as refused:
        items_of([USER, sealed])
    assert refused.value.param == "input.1.encrypted_content"
    readable = {**REASONING, "encrypted_content": "gAAA"}
    assert items_of([readable])[0]["content"] == REASONING["content"]
