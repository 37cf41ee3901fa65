"""Tools: their schemas are read once, however often a request needs them."""

from typing import Any

import pytest

from server.schema import tools
from server.schema.chat import ChatCompletionRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "not": {}}}}
BODY = {
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
        original = getattr(tools, name)

        def counted(*args: Any, name: str = name, original: Any = original, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(tools, name, counted)
    body = ChatCompletionRequest.model_validate(BODY)
    first = body.structured_output()
    assert first is not None
    assert first.unenforced == ("not",)
    tools.check_tools(body.tools or ())
    assert body.structured_output() == first
    assert tools.call_schemas(body.tools or ())
    assert sorted(calls) == ["check_schema"] * 2 + ["schema_constraint"] * 2
    # The schemas are not part of what a template or a client sees.
    assert BODY["tools"] == [tool.model_dump(exclude_unset=True) for tool in body.tools or ()]
