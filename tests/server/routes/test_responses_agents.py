"""Tools of coding agents in `POST /v1/responses`: namespaces, free text, and OpenAI's own."""

import json
from typing import Any

import pytest

from server.http.headers import IGNORED_FIELDS
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway
from tests.server.routes.test_responses_tools import PATH, both, call_text

PARAMETERS = {"type": "object", "properties": {"task": {"type": "string"}}}
PATCH = '*** Begin Patch\n+ a "b" \u00e9\n*** End Patch'
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "exec", "parameters": PARAMETERS, "strict": False},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Other agents.",
        "tools": [
            {"type": "function", "name": "spawn", "parameters": PARAMETERS},
            {"type": "custom", "name": "say"},
        ],
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
    },
    {"type": "web_search", "search_context_size": "low"},
]
ANSWERS = {
    "spawn": call_text("agents__spawn", task="t"),
    "patch": "So. " + call_text("apply_patch", input=PATCH),
    "say": call_text("agents__say", input="hi"),
    "odd": call_text("apply_patch", patch="p"),
}


@pytest.fixture
async def agents(start: StartGateway) -> Gateway:
    """A server with a parser, and scripted answers."""
    return await start(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        engine_args={"fake_answers": ANSWERS},
    )


async def last_item(gateway: Gateway, text: str) -> dict[str, Any]:
    """The last item of an answer, the same whole and streamed but for ids."""
    whole, events = await both(gateway, input=text, tools=TOOLS)
    streamed = events[-1]["response"]["output"][-1]
    ids = ("id", "call_id")
    item: dict[str, Any] = whole["output"][-1]
    assert {k: v for k, v in item.items() if k not in ids} == {
        k: v for k, v in streamed.items() if k not in ids
    }
    return item


async def test_a_tool_of_a_namespace_is_called_by_its_own_name(agents: Gateway) -> None:
    item = await last_item(agents, "spawn")
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "spawn", "agents")
    assert json.loads(item["arguments"]) == {"task": "t"}


async def test_a_custom_tool_gets_free_text(agents: Gateway) -> None:
    item = await last_item(agents, "patch")
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", PATCH)
    assert "namespace" not in item
    assert (await last_item(agents, "say"))["namespace"] == "agents"
    # The model wrote another object: nothing of it is lost.
    assert json.loads((await last_item(agents, "odd"))["input"]) == {"patch": "p"}


async def test_the_input_of_a_custom_tool_has_its_events(agents: Gateway) -> None:
    _, events = await both(agents, input="patch", tools=TOOLS)
    kinds = [event["type"] for event in events if "custom_tool" in event["type"]]
    prefix = "response.custom_tool_call_input"
    assert kinds == [f"{prefix}.delta", f"{prefix}.done"]
    assert [e.get("delta") or e["input"] for e in events if e["type"] in kinds] == [PATCH] * 2


async def test_what_is_left_out_is_named(agents: Gateway) -> None:
    body = {"input": "spawn", "tools": TOOLS, "reasoning": {"summary": "detailed"}}
    response = await agents.post(PATH, body)
    names = set(response.headers[IGNORED_FIELDS].split(", "))
    assert names >= {"tools.2.format", "tools.3", "reasoning.summary"}
    # It is in the object as the client sent it.
    assert response.json()["tools"][3] == TOOLS[3]
    assert response.json()["reasoning"]["summary"] == "detailed"


async def test_strict_fields_refuse_what_would_be_left_out(start: StartGateway) -> None:
    gateway = await start(
        strict_fields=True, enable_auto_tool_choice=True, tool_call_parser="hermes"
    )
    for tools, param in ((TOOLS, "tools.2.format"), (TOOLS[3:], "tools.0")):
        response = await gateway.post(PATH, {"input": "a", "tools": tools})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "web_search"}, "tool_choice"),
        ({"type": "function", "name": "nope"}, "tool_choice.name"),
        ("required", "tool_choice"),
    ],
)
async def test_a_tool_that_is_left_out_cannot_be_chosen(
    agents: Gateway, choice: Any, param: str
) -> None:
    tools = TOOLS[3:] if choice == "required" else TOOLS
    response = await agents.post(PATH, {"input": "a", "tools": tools, "tool_choice": choice})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_tool_can_be_chosen_with_and_without_its_namespace(gateway: Gateway) -> None:
    for name in ("spawn", "agents__spawn"):
        chosen = {"type": "function", "name": name}
        body = {"input": "a", "tools": TOOLS, "tool_choice": chosen, "max_output_tokens": 60}
        (item,) = (await gateway.post(PATH, body)).json()["output"]
        assert (item["name"], item["namespace"]) == ("spawn", "agents")
    chosen = {"type": "custom", "name": "say"}
    body = {"input": "a", "tools": TOOLS, "tool_choice": chosen, "max_output_tokens": 60}
    (item,) = (await gateway.post(PATH, body)).json()["output"]
    assert item["type"] == "custom_tool_call"
    two = [TOOLS[1], {**TOOLS[1], "name": "others"}]
    body |= {"tools": two, "tool_choice": {"type": "function", "name": "spawn"}}
    error = (await gateway.post(PATH, body)).json()["error"]
    assert error["param"] == "tool_choice.name"
    assert "agents__spawn, others__spawn" in error["message"]


async def test_the_conversation_continues_with_the_calls(
    agents: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[list[Any]] = []
    encode = agents.runtime.renderer.encode_chat

    async def recorded(messages: list[Any], **fields: Any) -> tuple[int, ...]:
        rendered.append(messages)
        return await encode(messages, **fields)

    monkeypatch.setattr(agents.runtime.renderer, "encode_chat", recorded)
    first = (await agents.post(PATH, {"input": "patch", "tools": TOOLS})).json()
    call = first["output"][-1]
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
    history = [
        {"type": "function_call", "call_id": "c", "namespace": "agents", "name": "spawn"}
        | {"arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ]
    body = {"previous_response_id": first["id"], "input": [output, *history], "tools": TOOLS}
    assert (await agents.post(PATH, body)).status_code == 200
    _, answer, result, other, _ = rendered[-1]
    (function,) = (call["function"] for call in answer["tool_calls"])
    assert (function["name"], function["arguments"]) == ("apply_patch", {"input": PATCH})
    assert (result["role"], result["content"]) == ("tool", "ok")
    assert other["tool_calls"][0]["function"]["name"] == "agents__spawn"
    listed = (await agents.client.get(f"{PATH}/{first['id']}/input_items")).json()
    assert listed["data"][0]["type"] == "message"


async def test_long_names_of_namespaces_are_read_in_forced_calls(gateway: Gateway) -> None:
    inner = [{"type": "function", "name": "b" * 64}]
    space = {"type": "namespace", "name": "a" * 64, "tools": inner}
    body = {"input": "a", "tools": [space], "tool_choice": "required", "max_output_tokens": 200}
    (item,) = (await gateway.post(PATH, body)).json()["output"][:1]
    assert (item["name"], item["namespace"]) == ("b" * 64, "a" * 64)


async def test_numbers_that_json_lacks_are_refused(gateway: Gateway) -> None:
    content = '{"input": "a", "tools": [{"type": "mcp", "x": NaN}]}'
    response = await gateway.client.post(
        PATH, content=content, headers={"content-type": "application/json"}
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


async def test_names_that_are_equal_once_flattened_are_refused(agents: Gateway) -> None:
    tools = [{"type": "function", "name": "agents__spawn"}, TOOLS[1]]
    error = (await agents.post(PATH, {"input": "a", "tools": tools})).json()["error"]
    assert error["param"] == "tools.1.tools.0.name"
    many = [{"type": "function", "name": f"f{i}"} for i in range(100)]
    spaces = [{"type": "namespace", "name": f"n{i}", "tools": many} for i in range(2)]
    error = (await agents.post(PATH, {"input": "a", "tools": spaces})).json()["error"]
    assert (error["param"], "128" in error["message"]) == ("tools", True)


async def test_the_object_has_the_penalties(gateway: Gateway) -> None:
    body = (await gateway.post(PATH, {"input": "a", "presence_penalty": 0.5})).json()
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.5, 0.0)
