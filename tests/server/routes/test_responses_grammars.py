"""Custom tools with a grammar in `POST /v1/responses`: what calls are held to, and what is said."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from engine_adapter.fake.parsing import FakeParsing
from engine_adapter.seam.counts import SpecStats
from engine_adapter.seam.types import (
    ConstraintKind,
    Delta,
    FinishReason,
    GenerationRequest,
    StructuredOutput,
)
from server.http.headers import IGNORED_FIELDS
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, record_requests
from tests.server.routes.test_responses_tools import PATH, both

LARK = 'start: "move " ("left" | "right")'
PARSER: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}


def tool(syntax: str, definition: str, name: str = "robot") -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": name, "format": form}


REGEX = tool("regex", "[0-9]{4}-[0-9]{2}")
NAMED = {"type": "custom", "name": "robot"}


def constraint(requests: list[GenerationRequest]) -> StructuredOutput:
    """That of the last request."""
    output = requests[-1].sampling.structured_output
    assert output is not None
    return output


async def test_a_regular_expression_is_a_pattern_of_the_only_argument(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = record_requests(gateway, monkeypatch)
    for choice in (NAMED, "required"):
        body = {"input": "a", "tools": [REGEX], "tool_choice": choice}
        response = await gateway.post(PATH, body)
        assert IGNORED_FIELDS not in response.headers
        output = constraint(requests)
        assert output.param == "tools.0.format.definition"
        schema = json.loads(output.value)
        parameters = schema if choice is NAMED else schema["$defs"]["robot"]
        assert parameters["properties"] == {
            "input": {"type": "string", "pattern": "^(?:[0-9]{4}-[0-9]{2})$"}
        }


@pytest.mark.parametrize(
    ("definition", "pattern"),
    [
        ("^[0-9]{2}$", "^(?:[0-9]{2})$"),
        (r"a\$", r"^(?:a\$)$"),
        (r"a\\$", r"^(?:a\\)$"),
        ("^(?P<month>May|June) [0-9]$", "^(?:(?P<month>May|June) [0-9])$"),
    ],
)
async def test_anchors_around_a_regular_expression_say_nothing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, definition: str, pattern: str
) -> None:
    requests = record_requests(gateway, monkeypatch)
    body = {"input": "a", "tools": [tool("regex", definition)], "tool_choice": NAMED}
    assert (await gateway.post(PATH, body)).status_code == 200
    (schema,) = json.loads(constraint(requests).value)["properties"].values()
    assert schema["pattern"] == pattern


async def test_a_chosen_call_is_held_to_a_regular_expression_as_a_strict_one_is(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(**PARSER)
    schemas: list[Any] = []
    call_constraint = FakeParsing.call_constraint

    def recorded(self: FakeParsing, schema: Any, *args: Any, **more: Any) -> Any:
        schemas.append(schema)
        return call_constraint(self, schema, *args, **more)

    monkeypatch.setattr(FakeParsing, "call_constraint", recorded)
    response = await gateway.post(PATH, {"input": "a", "tools": [REGEX]})
    assert response.status_code == 200, response.text
    assert IGNORED_FIELDS not in response.headers
    assert '"pattern"' in schemas[-1]["robot"]


async def test_a_forced_call_is_a_text_of_its_lark_grammar(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[GenerationRequest] = []

    async def generate(request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        requests.append(request)
        yield Delta("move ", (5,))
        yield Delta("left", (6,), finish_reason=FinishReason.STOP, spec=SpecStats())

    monkeypatch.setattr(gateway.engine, "generate", generate)
    whole, events = await both(
        gateway, input="a", tools=[tool("lark", LARK)], tool_choice=NAMED, store=False
    )
    output = constraint(requests)
    assert (output.kind, output.value) == (ConstraintKind.GRAMMAR, LARK)
    assert output.param == "tools.0.format.definition"
    (item,) = whole["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "robot", "move left")
    prefix = "response.custom_tool_call_input"
    assert [e["delta"] for e in events if e["type"] == f"{prefix}.delta"] == ["move ", "left"]
    assert [e["input"] for e in events if e["type"] == f"{prefix}.done"] == ["move left"]


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_lark_grammar_that_holds_no_call_is_named(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    gateway = await start(**PARSER)
    record_requests(gateway, monkeypatch)
    tools = [REGEX, tool("lark", LARK, "other")]
    response = await gateway.post(PATH, {"input": "a", "tools": tools, "tool_choice": choice})
    assert response.headers[IGNORED_FIELDS] == "tools.1.format"
    strict = await start(**PARSER, strict_fields=True)
    response = await strict.post(PATH, {"input": "a", "tools": tools, "tool_choice": choice})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools.1.format")


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "grammar"}, "tools.0.format.syntax"),
        ({"type": "grammar", "syntax": "lark"}, "tools.0.format.definition"),
        ({"type": "grammar", "syntax": "gbnf", "definition": "a"}, "tools.0.format.syntax"),
        ({"type": "grammar", "syntax": "lark", "definition": " "}, "tools.0.format.definition"),
        ({"type": "grammar", "syntax": "regex", "definition": "a" * 20_001}, "tools.0.format"),
        (
            {"type": "grammar", "syntax": "lark", "definition": "a" * 100_001},
            "tools.0.format.definition",
        ),
        (
            {"type": "grammar", "syntax": "regex", "definition": "(?=a)b"},
            "tools.0.format.definition",
        ),
        ({"type": "json"}, "tools.0.format"),
    ],
)
async def test_a_format_that_cannot_work_is_refused(
    gateway: Gateway, form: dict[str, Any], param: str
) -> None:
    body = {
        "input": "a",
        "tools": [{"type": "custom", "name": "robot", "format": form}],
        "tool_choice": NAMED,
    }
    error = (await gateway.post(PATH, body)).json()["error"]
    assert error["param"].startswith(param)
    assert len(error["message"]) < 500
