"""Structured output: every text fits its constraint and does not depend on the proposer."""

import asyncio
import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.types import (
    ConstraintKind,
    FinishReason,
    SamplingOptions,
    StructuredOutput,
)
from server.openai.field_names import CHAT
from server.openai.function_tools import chat_paths, checked_tools
from server.schema.tools import NamedTool, Tool, ToolChoice
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Result,
    generate,
    greedy,
    pinned,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

DRAFTING = {"ngram": 5, "suffix": 8, "draft": 4, "self": 5}
NAMES = ("parse", "format", "split", "join")


def of_keys(**properties: Any) -> dict[str, Any]:
    """The schema of an object with these properties and no others."""
    required = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


BOOLEAN = {"type": "boolean"}
CHOSEN = {"enum": list(NAMES)}
SCHEMAS: list[tuple[dict[str, Any], Callable[[Any], bool]]] = [
    (of_keys(ok=BOOLEAN), lambda value: value in ({"ok": True}, {"ok": False})),
    (
        of_keys(name=CHOSEN, count={"type": "integer", "minimum": 0, "maximum": 999}),
        lambda value: (
            set(value) == {"name", "count"}
            and value["name"] in NAMES
            and type(value["count"]) is int
            and 0 <= value["count"] <= 999
        ),
    ),
    (
        {"type": "array", "items": CHOSEN, "minItems": 2, "maxItems": 4},
        lambda value: 2 <= len(value) <= 4 and set(value) <= set(NAMES),
    ),
    (
        of_keys(
            kind={"const": "function"},
            call=of_keys(of=CHOSEN, cached=BOOLEAN),
            level={"enum": [1, 2, 3]},
        ),
        lambda value: (
            set(value) == {"kind", "call", "level"}
            and value["kind"] == "function"
            and value["call"]["of"] in NAMES
            and type(value["call"]["cached"]) is bool
            and value["level"] in (1, 2, 3)
        ),
    ),
]
"""Schemas with short instances, each with a check of an instance."""


def constrained(constraint: StructuredOutput, **options: Any) -> SamplingOptions:
    """Greedy sampling under a constraint."""
    given = {"temperature": 0.0, "max_tokens": 200, **options}
    return SamplingOptions(**given, structured_output=constraint)


def of_schema(schema: dict[str, Any]) -> StructuredOutput:
    return StructuredOutput(ConstraintKind.JSON_SCHEMA, json.dumps(schema))


async def of_each(
    live: Live, prompt: Prompt, constraint: StructuredOutput, **options: Any
) -> dict[str, Result]:
    """The results under each proposer and none, in one batch."""
    methods = {"none": 0, **DRAFTING}
    results = await asyncio.gather(
        *(
            generate(live, prompt, constrained(constraint, **options), pinned(name, k))
            for name, k in methods.items()
        )
    )
    return dict(zip(methods, results, strict=True))


@pytest.mark.parametrize("count", proved_beyond([48], [48, 200]))
async def test_texts_fit_their_schemas_and_are_those_of_plain_decoding(
    live: Live, prompts: list[Prompt], count: int
) -> None:
    rng = random.Random(3)
    jobs = [(prompts[i % len(prompts)], rng.choice(SCHEMAS)) for i in range(count)]

    async def run(prompt: Prompt, schema: dict[str, Any], name: str) -> Result:
        spec = pinned(name, DRAFTING.get(name, 0))
        return await generate(live, prompt, constrained(of_schema(schema)), spec)

    drafted = await asyncio.gather(
        *(run(prompt, schema, rng.choice([*DRAFTING])) for prompt, (schema, _) in jobs)
    )
    plain = await asyncio.gather(*(run(prompt, schema, "none") for prompt, (schema, _) in jobs))
    for result, undrafted, (_, (schema, fits)) in zip(drafted, plain, jobs, strict=True):
        assert result.finish_reason is FinishReason.STOP
        assert fits(json.loads(result.text)), (schema, result.text)
        assert result.tokens == undrafted.tokens
    accepted = {name: sum(result.counts(name).accepted for result in drafted) for name in DRAFTING}
    assert all(accepted.values()), f"every proposer must draft under a constraint: {accepted}"


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (StructuredOutput(ConstraintKind.REGEX, r"v[0-9]{1,3}\.[0-9]{1,3}"), r"v\d{1,3}\.\d{1,3}"),
        (
            StructuredOutput(ConstraintKind.CHOICE, choices=("yes", "no", "maybe not")),
            "yes|no|maybe not",
        ),
        (StructuredOutput(ConstraintKind.GRAMMAR, 'root ::= ("ab" | "cd") "!"'), "(ab|cd)!"),
    ],
)
async def test_other_kinds_of_constraints_are_enforced(
    live: Live, prompts: list[Prompt], constraint: StructuredOutput, pattern: str
) -> None:
    for options in ({}, {"temperature": 1.0, "seed": 5}):
        results = await of_each(live, prompts[0], constraint, **options)
        for result in results.values():
            assert re.fullmatch(pattern, result.text), result.text
            assert result.tokens == results["none"].tokens


async def test_any_json_object_is_an_object(live: Live, prompts: list[Prompt]) -> None:
    results = await of_each(
        live, prompts[1], StructuredOutput(ConstraintKind.JSON_OBJECT), max_tokens=64
    )
    assert len({result.tokens for result in results.values()}) == 1
    assert results["none"].text.startswith("{")


@pytest.mark.parametrize(
    "constraint",
    [
        StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"type": "objekt"}', param="it"),
        StructuredOutput(
            ConstraintKind.JSON_SCHEMA, '{"type": "array", "uniqueItems": true}', param="it"
        ),
        StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"$ref": "#/nowhere"}', param="it"),
        StructuredOutput(ConstraintKind.REGEX, "(" + "a" * 1000, param="it"),
        StructuredOutput(ConstraintKind.GRAMMAR, "root ::= nowhere", param="it"),
        StructuredOutput(ConstraintKind.GRAMMAR, "no grammar", param="it"),
    ],
)
async def test_an_unsupported_constraint_fails_only_its_own_request(
    live: Live, prompts: list[Prompt], constraint: StructuredOutput
) -> None:
    neighbour = asyncio.create_task(generate(live, prompts[2], greedy(60), pinned("self", 5)))
    with pytest.raises(InvalidRequest) as caught:
        await generate(live, prompts[2], constrained(constraint), pinned("ngram", 5))
    assert caught.value.param == "it"
    assert str(caught.value).startswith("it: ")
    assert len(str(caught.value)) < 300
    assert len((await neighbour).tokens) == 60


ENFORCED = {
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 999},
    "oneOf": {"oneOf": [{"type": "boolean"}, {"enum": [1, 2]}]},
    "allOf": {"allOf": [of_keys(a=BOOLEAN), {"properties": {"a": {"const": True}}}]},
    "beside anyOf": {**of_keys(a=BOOLEAN, b=BOOLEAN), "anyOf": [{"properties": {"b": CHOSEN}}, {}]},
    "beside $ref": {"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"enum": [2, 3, 4, 5]}}},
    "beside enum": {"enum": [*NAMES, 1, 22], "type": "string", "minLength": 5},
    "without a type": {"minimum": 10, "maximum": 12, "pattern": "^(ab){1,2}$", "items": False},
    "undeclared": {**of_keys(), "required": ["a"], "additionalProperties": BOOLEAN},
    "definitions": {"$ref": "#/definitions/tree", "definitions": {"tree": {"type": "boolean"}}},
}
"""Schemas with keywords that a compiler of grammars easily ignores."""


@pytest.mark.parametrize("schema", ENFORCED.values(), ids=ENFORCED)
async def test_every_keyword_of_a_schema_is_enforced(
    live: Live, prompts: list[Prompt], schema: dict[str, Any]
) -> None:
    results = await asyncio.gather(
        *(
            generate(
                live,
                prompts[seed % len(prompts)],
                constrained(of_schema(schema), temperature=1.5, seed=seed, max_tokens=60),
                pinned("self", 5),
            )
            for seed in range(12)
        )
    )
    whole = [result for result in results if result.finish_reason is FinishReason.STOP]
    assert whole
    for result in whole:
        jsonschema.validate(json.loads(result.text), schema)


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("not", {"type": "integer", "not": {"const": 1}}),
        ("if", {"type": "integer", "if": {"minimum": 5}, "then": {"multipleOf": 2}}),
        ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
        ("contains", {"type": "array", "contains": {"type": "integer"}}),
        ("propertyNames", {"type": "object", "propertyNames": {"pattern": "^a$"}}),
        ("oneOf", {"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        ("example.org", {"$ref": "https://example.org/schema.json"}),
        ("foo", {"type": "string", "format": "foo"}),
    ],
)
async def test_an_unsupported_keyword_is_refused_by_name(
    live: Live, prompts: list[Prompt], keyword: str, schema: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match=keyword):
        await generate(live, prompts[0], constrained(of_schema(schema)), pinned("ngram", 5))


async def test_rows_without_a_constraint_are_unaffected_by_other_rows(
    live: Live, prompts: list[Prompt]
) -> None:
    alone = await generate(live, prompts[0], greedy(40), pinned("self", 5))
    beside, *_ = await asyncio.gather(
        generate(live, prompts[0], greedy(40), pinned("self", 5)),
        *(
            generate(live, prompt, constrained(of_schema(schema)), pinned("self", 5))
            for prompt, (schema, _) in zip(prompts[1:], SCHEMAS * 2, strict=False)
        ),
    )
    assert beside.tokens == alone.tokens


TOOLS = [
    Tool.model_validate({"type": "function", "function": {"name": name, "parameters": schema}})
    for name, schema in (
        ("choose", {**of_keys(name=CHOSEN, again={"$ref": "#/$defs/b"}), "$defs": {"b": BOOLEAN}}),
        ("count-up", of_keys(to={"type": "integer", "minimum": 1, "maximum": 99})),
        ("stop", {}),
    )
]
"""Functions with short arguments; the first refers to a part of its own schema."""


def call_constraint(choice: ToolChoice, *, parallel: bool) -> StructuredOutput | None:
    """The constraint on the text of a chat with these tools."""
    functions = [tool.function for tool in TOOLS]
    paths = chat_paths(len(functions))
    return checked_tools(functions, paths, choice, CHAT, parallel=parallel).forced_call()


@pytest.mark.parametrize("parallel", proved_beyond([True], [False, True]))
async def test_required_calls_are_those_of_plain_decoding_and_drafts_are_accepted(
    live: Live, prompts: list[Prompt], parallel: bool
) -> None:
    constraint = call_constraint("required", parallel=parallel)
    assert constraint is not None
    schemas = {tool.function.name: tool.function.parameters for tool in TOOLS}
    accepted = dict.fromkeys(DRAFTING, 0)
    of_jobs = await asyncio.gather(
        *(
            of_each(live, prompt, constraint, **options)
            for prompt in prompts[:4]
            for options in ({}, {"temperature": 1.0, "seed": 4})
        )
    )
    for results in of_jobs:
        for name, result in results.items():
            assert result.tokens == results["none"].tokens
            if name != "none":
                accepted[name] += result.counts(name).accepted
        if results["none"].finish_reason is not FinishReason.STOP:
            continue  # as many calls as there is room for
        calls = json.loads(results["none"].text)
        assert len(calls) == 1 or (parallel and calls)
        for call in calls:
            jsonschema.validate(call["parameters"], schemas[call["name"]])
    assert all(accepted.values()), f"every proposer must draft for a required call: {accepted}"


async def test_a_named_call_is_that_of_plain_decoding(live: Live, prompts: list[Prompt]) -> None:
    choice = NamedTool.model_validate({"type": "function", "function": {"name": "choose"}})
    constraint = call_constraint(choice, parallel=True)
    assert constraint is not None
    results = await of_each(live, prompts[3], constraint)
    assert len({result.tokens for result in results.values()}) == 1
    jsonschema.validate(json.loads(results["none"].text), TOOLS[0].function.parameters)
