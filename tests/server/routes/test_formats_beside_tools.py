"""A format beside tools of which the model may call some, and `strict` of tools."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from engine_adapter.fake import parsing as fake_parsing
from engine_adapter.seam.parsing import CallConstraint, NoCallGrammar
from engine_adapter.seam.types import StructuredOutput
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events
from tests.server.response_events import checked, checked_events, text_of
from tests.server.routes.test_tools import calls_of, streamed
from tests.server.tool_bodies import AUTO, TOOLS, call_text, tool

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"sky": {"enum": ["rain", "sun"]}},
    "required": ["sky"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "report", "schema": SCHEMA}}
IN_TEXT = json.dumps({"sky": "rain", "note": call_text("now")})
ANSWERS = {
    "one call": call_text("get_weather", city="Bonn", unit="kelvin"),
    "two calls": call_text("now") + call_text("get-stock", unit=True),
    "an answer": '{"sky": "sun"}',
    "think and answer": '<think>Hm.</think>{"sky": "sun"}',
    "think and call": "<think>I look.</think>" + call_text("now"),
    "looks like a call": IN_TEXT,
    "free": "Well. " + call_text("now"),
}
CHOSEN: list[tuple[str, str | None, str | None, list[tuple[str, Any]]]] = [
    ("one call", None, None, [("get_weather", {"city": "Bonn", "unit": "kelvin"})]),
    ("two calls", None, None, [("now", {}), ("get-stock", {"unit": True})]),
    ("an answer", '{"sky": "sun"}', None, []),
    ("think and answer", '{"sky": "sun"}', "Hm.", []),
    ("think and call", None, "I look.", [("now", {})]),
    ("looks like a call", IN_TEXT, None, []),
]
"""A prompt with its answer's text, reasoning and calls."""


@pytest.fixture
async def choosing(start: StartGateway) -> Gateway:
    """A server with parsers, and scripted answers."""
    arguments = {"fake_answers": ANSWERS}
    return await start(**AUTO, reasoning_parser="deepseek_r1", engine_args=arguments)


@pytest.fixture
def inexpressible(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser whose calls no grammar can express."""

    def refuse(
        self: Any, schemas: Mapping[str, str], answer: StructuredOutput | None, *, single_call: bool
    ) -> CallConstraint:
        raise NoCallGrammar("the tool call parser 'hermes': it has no description")

    monkeypatch.setattr(fake_parsing.FakeParsing, "call_constraint", refuse)


@pytest.mark.parametrize(("prompt", "text", "reasoning", "calls"), CHOSEN)
async def test_the_model_calls_or_answers_in_the_format(
    choosing: Gateway,
    prompt: str,
    text: str | None,
    reasoning: str | None,
    calls: list[tuple[str, Any]],
) -> None:
    asked = {"tools": TOOLS, "response_format": FORMAT}
    (choice,) = (await choosing.chat(prompt, **asked)).json()["choices"]
    message = choice["message"]
    assert (message["content"], calls_of(message)) == (text, calls)
    assert message.get("reasoning_content") == reasoning
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    rebuilt, reason = streamed(events(await choosing.chat(prompt, **asked, stream=True)))
    assert (rebuilt["content"] or None, calls_of(rebuilt)) == (text, calls)
    assert rebuilt.get("reasoning_content") == reasoning
    assert reason == choice["finish_reason"]


async def test_an_answer_fits_the_schema(choosing: Gateway) -> None:
    for fields in ({"response_format": FORMAT}, {"structured_outputs": {"json": SCHEMA}}):
        for stream in (False, True):
            response = await choosing.chat("unscripted", tools=TOOLS, stream=stream, **fields)
            assert response.status_code == 200, response.text
            message = (
                streamed(events(response))[0]
                if stream
                else response.json()["choices"][0]["message"]
            )
            jsonschema.validate(json.loads(message["content"]), SCHEMA)


async def test_responses_have_a_format_beside_tools_too(choosing: Gateway) -> None:
    wanted = {"type": "json_schema", "name": "report", "schema": SCHEMA}
    tools = [{"type": "function", **one["function"]} for one in TOOLS]
    for prompt, kinds in (("one call", ["function_call"]), ("an answer", ["message"])):
        body = {"input": prompt, "tools": tools, "text": {"format": wanted}, "temperature": 0}
        whole = checked((await choosing.post("/v1/responses", body)).json())
        stream = await choosing.post("/v1/responses", {**body, "stream": True})
        last = checked_events(stream.text)[-1]["response"]
        for one in (whole, last):
            assert [item["type"] for item in one["output"]] == kinds
            if kinds == ["message"]:
                assert json.loads(text_of(one)) == {"sky": "sun"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"guided_regex": "a+"}, "guided_regex"),
    ],
)
async def test_a_format_that_is_not_json_is_refused(
    choosing: Gateway, fields: dict[str, Any], param: str
) -> None:
    response = await choosing.chat("no", tools=TOOLS, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert "tool_choice" in error["message"]


async def test_without_a_parser_it_is_the_400_of_a_choice(start: StartGateway) -> None:
    gateway = await start(tool_call_parser="none")
    response = await gateway.chat(tools=TOOLS, response_format=FORMAT)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")
    assert "--tool-call-parser" in response.json()["error"]["message"]


@pytest.mark.usefixtures("inexpressible")
async def test_without_a_grammar_a_format_is_ignored_with_notice(
    choosing: Gateway, start: StartGateway
) -> None:
    header = "x-specgate-ignored-fields"
    response = await choosing.chat("free", tools=TOOLS[:1], response_format=FORMAT)
    assert response.headers[header] == "response_format"
    message = response.json()["choices"][0]["message"]
    assert message["content"] == "Well. "
    assert calls_of(message) == [("now", {})]
    unheld = await choosing.chat("unscripted", tools=TOOLS[:1], response_format=FORMAT)
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(unheld.json()["choices"][0]["message"]["content"])
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    text = {"format": {"type": "json_schema", "name": "report", "schema": SCHEMA}}
    body = {"input": "no", "tools": tools, "text": text}
    assert (await choosing.post("/v1/responses", body)).headers[header] == "text.format"
    picky = await start(**AUTO, strict_fields=True)
    error = (await picky.chat("no", tools=TOOLS, response_format=FORMAT)).json()["error"]
    assert (error["param"], error["code"]) == ("response_format", "unsupported_parameter")


async def test_keywords_of_the_format_are_in_the_header(choosing: Gateway) -> None:
    schema = {**SCHEMA, "not": {"required": ["cloud"]}}
    wanted = {"type": "json_schema", "json_schema": {"name": "report", "schema": schema}}
    response = await choosing.chat("unscripted", tools=TOOLS, response_format=wanted)
    assert response.headers["x-specgate-unenforced-keywords"] == "not"


async def test_strict_is_enforced_where_the_parser_has_a_grammar(choosing: Gateway) -> None:
    header = "x-specgate-ignored-fields"
    for choice in ("auto", "required", "none"):
        response = await choosing.chat("free", tools=TOOLS, tool_choice=choice)
        assert header not in response.headers
    message = (await choosing.chat("free", tools=TOOLS)).json()["choices"][0]["message"]
    assert (message["content"], calls_of(message)) == ("Well. ", [("now", {})])


@pytest.mark.parametrize("fields", [{"ignore_eos": True, "max_tokens": 40}, {"min_tokens": 3}])
async def test_strict_is_ignored_beside_fields_that_decide_the_end(
    choosing: Gateway, fields: dict[str, Any]
) -> None:
    response = await choosing.chat("free", tools=TOOLS, **fields)
    assert response.headers["x-specgate-ignored-fields"] == "tools.1.function.strict"


@pytest.mark.usefixtures("inexpressible")
async def test_strict_is_ignored_with_notice_elsewhere(
    choosing: Gateway, start: StartGateway
) -> None:
    header = "x-specgate-ignored-fields"
    response = await choosing.chat("free", tools=TOOLS)
    assert response.headers[header] == "tools.1.function.strict"
    assert header not in (await choosing.chat("free", tools=[tool("now")])).headers
    assert header not in (await choosing.chat("free", tools=TOOLS, tool_choice="none")).headers
    tools = [{"type": "function", **one["function"]} for one in TOOLS]
    body = {"input": "free", "tools": tools}
    response = await choosing.post("/v1/responses", body)
    assert response.headers[header] == "tools.1.strict"
    picky = await start(**AUTO, strict_fields=True)
    error = (await picky.chat("free", tools=TOOLS)).json()["error"]
    assert (error["param"], error["code"]) == ("tools.1.function.strict", "unsupported_parameter")
    assert (await picky.chat("free", tools=TOOLS, tool_choice="required")).status_code == 200


async def test_a_constraint_that_has_no_place_in_the_models_messages_is_refused(
    choosing: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, answer: StructuredOutput) -> StructuredOutput:
        raise NoCallGrammar("it cannot stand within that of a message")

    monkeypatch.setattr(fake_parsing.FakeParsing, "text_constraint", refuse)
    for fields, param in (
        ({"response_format": FORMAT}, "response_format"),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json"),
    ):
        response = await choosing.chat("an answer", **fields)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param, "unsupported_parameter")
        assert "cannot stand within" in error["message"]
    assert (await choosing.chat("an answer")).status_code == 200
