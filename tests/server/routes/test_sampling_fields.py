"""The fields of sampling and constraints: the engine's options, and refused values."""

from typing import Any

import pytest

from engine_adapter.seam.types import ConstraintKind, GenerationRequest, StructuredOutput
from server.schema import structured
from tests.server.gateway import Gateway, events

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SCHEMA_TEXT = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'


def wrapped(schema: Any = SCHEMA, **fields: Any) -> dict[str, Any]:
    """OpenAI's wrapper of a schema."""
    json_schema = {"name": "answer", "schema": schema, **fields}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


HONOURED: list[tuple[dict[str, Any], str, Any]] = [
    ({}, "min_p", 0.0),
    ({"min_p": 0.25}, "min_p", 0.25),
    ({}, "logit_bias", {}),
    ({"logit_bias": {"5": -100, "17": 2.5}}, "logit_bias", {5: -100.0, 17: 2.5}),
    ({"allowed_token_ids": [5, 6]}, "allowed_token_ids", (5, 6)),
    ({"bad_words": ["a", " b"]}, "bad_words", ("a", " b")),
    ({"repetition_detection": {}}, "repetition_detection", None),
    ({"thinking_token_budget": -1}, "thinking_token_budget", None),
    ({}, "structured_output", None),
    ({"grammar": "", "format": ""}, "structured_output", None),
    (
        {"grammar": 'root ::= "a"'},
        "structured_output",
        StructuredOutput(ConstraintKind.GRAMMAR, 'root ::= "a"', param="grammar"),
    ),
    (
        {"json_schema": SCHEMA},
        "structured_output",
        StructuredOutput(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT, param="json_schema"),
    ),
    (
        {"format": "json"},
        "structured_output",
        StructuredOutput(ConstraintKind.JSON_OBJECT, param="format"),
    ),
    (
        {"format": SCHEMA},
        "structured_output",
        StructuredOutput(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT, param="format"),
    ),
    (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        "structured_output",
        StructuredOutput(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT, param="response_format.schema"),
    ),
    (
        {"guided_json": SCHEMA_TEXT},
        "structured_output",
        StructuredOutput(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT, param="guided_json"),
    ),
    (
        {"guided_regex": "a+"},
        "structured_output",
        StructuredOutput(ConstraintKind.REGEX, "a+", param="guided_regex"),
    ),
    (
        {"guided_choice": ["yes", "no"]},
        "structured_output",
        StructuredOutput(ConstraintKind.CHOICE, choices=("yes", "no"), param="guided_choice"),
    ),
    (
        {"guided_grammar": 'root ::= "a"'},
        "structured_output",
        StructuredOutput(ConstraintKind.GRAMMAR, 'root ::= "a"', param="guided_grammar"),
    ),
    (
        {"regex": "a+"},
        "structured_output",
        StructuredOutput(ConstraintKind.REGEX, "a+", param="regex"),
    ),
    (
        {"ebnf": 'root ::= "a"', "guided_decoding_backend": "guidance"},
        "structured_output",
        StructuredOutput(ConstraintKind.GRAMMAR, 'root ::= "a"', param="ebnf"),
    ),
    ({"top_p": 0, "temperature": 1.5}, "temperature", 0.0),
    ({"top_p": 0, "temperature": 1.5}, "top_p", 1.0),
    ({"top_p": 0.1, "temperature": 1.5}, "temperature", 1.5),
    ({"response_format": {"type": "text"}}, "structured_output", None),
    ({"structured_outputs": {}}, "structured_output", None),
    (
        {"response_format": {"type": "json_object"}},
        "structured_output",
        StructuredOutput(ConstraintKind.JSON_OBJECT, param="response_format"),
    ),
    (
        wrapped(strict=True, description="an answer"),
        "structured_output",
        StructuredOutput(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT, param="response_format"),
    ),
    (
        {"structured_outputs": {"json": SCHEMA}},
        "structured_output",
        StructuredOutput(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT, param="structured_outputs.json"),
    ),
    (
        {"structured_outputs": {"json": SCHEMA_TEXT}},
        "structured_output",
        StructuredOutput(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT, param="structured_outputs.json"),
    ),
    (
        {"structured_outputs": {"json_object": True}},
        "structured_output",
        StructuredOutput(ConstraintKind.JSON_OBJECT, param="structured_outputs.json_object"),
    ),
    (
        {"structured_outputs": {"regex": "a+"}},
        "structured_output",
        StructuredOutput(ConstraintKind.REGEX, "a+", param="structured_outputs.regex"),
    ),
    (
        {"structured_outputs": {"choice": ["yes", "no"]}},
        "structured_output",
        StructuredOutput(
            ConstraintKind.CHOICE, choices=("yes", "no"), param="structured_outputs.choice"
        ),
    ),
    (
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        "structured_output",
        StructuredOutput(
            ConstraintKind.GRAMMAR, 'root ::= "a"', param="structured_outputs.grammar"
        ),
    ),
]
"""Fields, the engine's option, and its value."""


@pytest.mark.parametrize(("fields", "option", "value"), HONOURED)
async def test_a_field_reaches_the_engine(
    gateway: Gateway,
    seen: list[GenerationRequest],
    fields: dict[str, Any],
    option: str,
    value: Any,
) -> None:
    for ask in (gateway.complete, gateway.chat):
        response = await ask(n=2, **fields)
        assert response.status_code == 200, response.text
    streamed = events(await gateway.chat(stream=True, **fields))
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"
    assert [getattr(request.sampling, option) for request in seen] == [value] * 5


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.5}, "min_p"),
    ({"min_p": "0.5"}, "min_p"),
    ({"logit_bias": []}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"٣": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 100.5}}, "logit_bias"),
    ({"logit_bias": {"5": -101}}, "logit_bias"),
    ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
    ({"logit_bias": {"5": float("nan")}}, "logit_bias.5"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [999999]}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words.0"),
    ({"thinking_token_budget": -2}, "thinking_token_budget"),
    ({"thinking_token_budget": 1.5}, "thinking_token_budget"),
    ({"repetition_detection": {"max_pattern_size": 65}}, "repetition_detection.max_pattern_size"),
    ({"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection.min_count"),
    (
        {"repetition_detection": {"max_pattern_size": 3, "min_count": 1}},
        "repetition_detection.min_count",
    ),
    (
        {"repetition_detection": {"min_pattern_size": 2, "min_count": 2}},
        "repetition_detection.min_pattern_size",
    ),
    (
        {"repetition_detection": {"max_pattern_size": 64, "min_count": 17}},
        "repetition_detection.min_count",
    ),
    ({"bad_words": ["\ud800"]}, "bad_words.0"),
    ({"bad_words": "a"}, "bad_words"),
    ({"bad_words": ["a"] * 129}, "bad_words"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_object", "schema": "{}"}}, "response_format.schema"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    (
        {"response_format": {**wrapped()["response_format"], "schema": {}}},
        "response_format.schema",
    ),
    (wrapped("object"), "response_format.json_schema.schema"),
    (wrapped(name="two words"), "response_format.json_schema.name"),
    (wrapped(colour="red"), "response_format.json_schema.colour"),
    (wrapped({"const": float("inf")}), "response_format.json_schema.schema"),
    (wrapped({"$ref": "#"}), "response_format.json_schema.schema"),
    (
        wrapped({"items": {"$ref": "#/$defs/a~1b"}, "$defs": {"a/b": {"$ref": "#/$defs/a%7E1b"}}}),
        "response_format.json_schema.schema",
    ),
    (
        wrapped({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#"}}}),
        "response_format.json_schema.schema",
    ),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", "  "]}}, "structured_outputs.choice.1"),
    ({"structured_outputs": {"grammar": "\n"}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"regex": "a"}} | wrapped(), "structured_outputs"),
    ({"grammar": 'root ::= "a"'} | wrapped(), "grammar"),
    ({"format": "json", "guided_regex": "a"}, "guided_regex"),
    ({"format": "yaml"}, "format"),
    ({"format": []}, "format"),
    ({"grammar": {"type": "json"}}, "grammar"),
    ({"json_schema": "{"}, "json_schema"),
    ({"json_schema": {"$ref": "#"}}, "json_schema"),
    ({"guided_json": "[]"}, "guided_json"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_grammar": " "}, "guided_grammar"),
    ({"format": "json", "min_tokens": 3}, "min_tokens"),
    (wrapped() | {"ignore_eos": True}, "ignore_eos"),
    (wrapped() | {"min_tokens": 3}, "min_tokens"),
]
"""Fields, and the error's `param`."""


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_an_invalid_value_is_a_400_that_names_its_field(
    gateway: Gateway, seen: list[GenerationRequest], fields: dict[str, Any], param: str
) -> None:
    for ask in (gateway.complete, gateway.chat):
        response = await ask(max_tokens=8, **fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param, response.text
    assert not seen


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"bad_words": ["a"]}, "bad_words"),
        (
            {"repetition_detection": {"max_pattern_size": 9, "min_count": 2}},
            "repetition_detection",
        ),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
    ],
)
async def test_an_engine_that_cannot_enforce_a_constraint_is_a_400(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        response = await gateway.complete(max_tokens=8, stream=stream, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
    assert (await gateway.complete(max_tokens=8)).status_code == 200


def test_a_long_chain_of_references_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, followed = structured._resolve, []

    def counted(schema: Any, ref: str) -> Any:
        followed.append(ref)
        return resolve(schema, ref)

    monkeypatch.setattr(structured, "_resolve", counted)
    chain = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(500)}
    schema = {"$ref": "#/$defs/0", "$defs": {**chain, "500": {"type": "integer"}}}
    body = structured.StructuredOutputs(json=schema)
    assert structured.from_structured_outputs(body) is not None
    assert len(followed) == len(set(followed)) == 501
