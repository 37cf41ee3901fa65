"""Tools: their schemas are read once, however often a request needs them."""

from typing import Any

import pytest

from server.openai import function_tools
from server.openai.chat_input import chat_input
from server.schema.chat import ChatCompletionRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "not": {}}}}
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a"}],
    "tools": [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": False}}
        for name in ("f", "g")
    ],
    "tool_choice": "required",
}


def test_the_schema_of_a_tool_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("check_schema", "schema_constraint"):
        original = getattr(function_tools, name)

        def counted(*args: Any, name: str = name, original: Any = original, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(function_tools, name, counted)
    body = ChatCompletionRequest.model_validate(BODY)
    chat = chat_input(body, body.messages)
    assert chat.constraint is not None
    assert chat.constraint.unenforced == ("not",)
    assert chat.tools.call_schemas()
    assert chat.tools.forced_call() == chat.constraint
    assert sorted(calls) == ["check_schema"] * 2 + ["schema_constraint"] * 2
    # What is enforced is not part of what a template sees.
    assert chat.prompt.tools == [
        {"type": "function", "function": {**tool["function"], "description": None}}
        for tool in BODY["tools"]
    ]
