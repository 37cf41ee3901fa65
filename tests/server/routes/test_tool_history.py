"""Earlier calls and their results in a chat: what the template gets, and what is refused."""

from typing import Any

import pytest

from tests.server.gateway import Gateway

USER = {"role": "user", "content": "What time is it?"}


def called(arguments: Any = '{"zone": "UTC"}', **more: Any) -> dict[str, Any]:
    function = {"name": "now", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function, **more}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(content: Any = "12:00", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call_1", "content": content, **more}


async def rendered(gateway: Gateway, *messages: dict[str, Any], **fields: Any) -> str:
    """The prompt of a chat."""
    body = {"messages": list(messages), **fields}
    response = await gateway.post("/tokenize", body)
    assert response.status_code == 200, response.text
    text = await gateway.post("/detokenize", {"tokens": response.json()["tokens"]})
    prompt: str = text.json()["prompt"]
    return prompt


async def test_the_demos_template_shows_tools_calls_and_results(gateway: Gateway) -> None:
    parameters = {"type": "object", "properties": {"zone": {"type": "string"}}}
    tools = [
        {"type": "function", "function": {"name": "now", "parameters": parameters}},
        {"type": "function", "function": {"name": "stop", "description": "Ends.", "strict": True}},
    ]
    text = await rendered(gateway, USER, called(), result(), tools=tools)
    assert text == (
        "<|bos|><|system|># Tools\n"
        '{"name": "now", "description": null, "parameters": {"type": "object", '
        '"properties": {"zone": {"type": "string"}}}}\n'
        '{"name": "stop", "description": "Ends.", "parameters": null, "strict": true}'
        "<|user|>What time is it?"
        '<|assistant|><tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
        "<|eos|><|user|><tool_response>\n12:00\n</tool_response><|assistant|>"
    )


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": [1, {"b": "é"}]}', '{"a": [1, {"b": "é"}]}'),
        ({"a": 1}, '{"a": 1}'),
        ("", "{}"),
        (None, "{}"),
        ("{}", "{}"),
        ('{"a": ', "{}"),
        ("[1]", "{}"),
        ('{"a": ' * 50 + "1" + "}" * 50, '{"a": ' * 50 + "1" + "}" * 50),
    ],
)
async def test_arguments_are_an_object_for_the_template(
    gateway: Gateway, arguments: Any, shown: str
) -> None:
    text = await rendered(gateway, USER, called(arguments))
    assert f'"arguments": {shown}}}\n</tool_call>' in text


async def test_results_may_be_parts_and_answers_may_follow(gateway: Gateway) -> None:
    parts = [{"type": "text", "text": "12"}, {"type": "text", "text": "00"}]
    answer = {"role": "assistant", "content": "Noon.", "tool_calls": []}
    text = await rendered(gateway, USER, called(), result(parts), answer, USER)
    assert "<tool_response>\n12\n00\n</tool_response><|assistant|>Noon.<|eos|><|user|>" in text
    assert text.count("<tool_call>") == 1


async def test_a_whole_turn_with_tools_is_answered(gateway: Gateway) -> None:
    messages = [USER, called(), result()]
    response = await gateway.post("/v1/chat/completions", {"messages": messages, "max_tokens": 4})
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"]


ARGUMENTS = "messages.1.tool_calls.0.function.arguments"


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


WRONG: list[tuple[dict[str, Any], str]] = [
    (called() | {"tool_calls": {}}, "messages.1.tool_calls"),
    (called() | {"tool_calls": ["now"]}, "messages.1.tool_calls.0"),
    (called() | {"tool_calls": [{"id": "a"}]}, "messages.1.tool_calls.0.function"),
    (called(5), ARGUMENTS),
    (called("[" * 100_000), ARGUMENTS),
    (called('{"a": ' * 101 + "1" + "}" * 101), ARGUMENTS),
    (called({"a": [[] for _ in range(3)], "b": deep(101)}), ARGUMENTS),
    (called('{"a": ' + "9" * 5000 + "}"), ARGUMENTS),
    (called('{"a": "\\ud800"}'), f"{ARGUMENTS}.a"),
    ({"role": "assistant", "content": "\ud800"}, "messages.1.content"),
    (
        {"role": "user", "content": [{"type": "text", "text": "\ud800"}]},
        "messages.1.content.0.text",
    ),
    (called(id=5), "messages.1.tool_calls.0.id"),
    (called(type="custom"), "messages.1.tool_calls.0.type"),
    (called(function={"arguments": "{}"}), "messages.1.tool_calls.0.function.name"),
    (called() | {"role": "user", "content": "hi"}, "messages.1"),
    ({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, "messages.1"),
    ({"role": "function", "name": "f", "content": "5"}, "messages.1.role"),
    (result(None), "messages.1"),
    (result(tool_call_id=5), "messages.1.tool_call_id"),
]
"""A wrong message, and the field that the error names."""


@pytest.mark.parametrize(("message", "param"), WRONG, ids=[f"{i}" for i in range(len(WRONG))])
async def test_a_wrong_message_is_a_400_that_names_its_field(
    gateway: Gateway, message: dict[str, Any], param: str
) -> None:
    body = {"messages": [USER, message], "max_tokens": 2}
    response = await gateway.post("/v1/chat/completions", body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    if "function" in (message["role"], *message):
        assert "tool" in error["message"]
