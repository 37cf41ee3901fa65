"""Calls that the model chooses: held to their schemas, and the same with any proposer."""

import asyncio
import json
from typing import Any

import jsonschema
import pytest
from transformers import AutoTokenizer

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.parsing import CallConstraint, Parsing, ParsingRequest
from engine_adapter.seam.types import ConstraintKind, FinishReason, StructuredOutput
from engine_adapter.vllm_engine.gateway.call_grammar import call_grammar
from engine_adapter.vllm_engine.gateway.parsing import VllmParsers
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.conftest import CHOICES, TARGET
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Result,
    generate,
    greedy,
    pinned,
)
from tests.engine_adapter.vllm_engine.test_structured_output import (
    BOOLEAN,
    CHOSEN,
    constrained,
    of_keys,
    of_schema,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.needs_vllm,
    pytest.mark.asyncio(loop_scope="session"),
]

SCHEMAS = {"choose": of_keys(name=CHOSEN, again=BOOLEAN), "stop": of_keys()}
ANSWER = of_keys(of=CHOSEN, sure=BOOLEAN)


@pytest.fixture(scope="module")
def parsing() -> Parsing:
    """The parsers of a request with tools."""
    parsers = VllmParsers(EngineConfig(TARGET, "demo", tool_call_parser="hermes"))
    parsers.load()
    tools = tuple({"type": "function", "function": {"name": name}} for name in SCHEMAS)
    made = parsers.parsing(ParsingRequest((5,), tools), None)
    assert made is not None
    return made


def constraint(parsing: Parsing, answer: Any, *, single_call: bool) -> CallConstraint:
    schemas = {name: json.dumps(schema) for name, schema in SCHEMAS.items()}
    held = None if answer is None else of_schema(answer)
    return parsing.call_constraint(schemas, held, single_call=single_call)


def toward(text: str) -> dict[int, float]:
    """A bias to the first token of a text."""
    tokenizer: Any = AutoTokenizer.from_pretrained(TARGET)
    return {tokenizer.encode(text, add_special_tokens=False)[0]: 100.0}


async def of_every(
    live: Live, prompt: Prompt, constraint: StructuredOutput, **options: Any
) -> dict[str, Result]:
    """The results under every proposer and none, in one batch."""
    sampling = constrained(constraint, **options)
    results = await asyncio.gather(
        *(generate(live, prompt, sampling, pinned(name, k)) for name, k in CHOICES.items())
    )
    return dict(zip(CHOICES, results, strict=True))


@pytest.mark.parametrize(
    "chooses", proved_beyond(["the answer", "calls"], ["the answer", "a call", "calls"])
)
async def test_an_answer_or_calls_are_those_of_plain_decoding(
    live: Live, prompts: list[Prompt], parsing: Parsing, chooses: str
) -> None:
    held = constraint(parsing, ANSWER, single_call=chooses == "a call")
    begin = "{" if chooses == "the answer" else "<tool_call>"
    accepted = dict.fromkeys(CHOICES, 0)
    options: dict[str, Any] = {"logit_bias": toward(begin), "max_tokens": 64}
    of_jobs = await asyncio.gather(
        *(
            of_every(live, prompt, held.constraint, **sampling, **options)
            for prompt in prompts[:2]
            for sampling in ({}, {"temperature": 1.0, "seed": 4})
        )
    )
    for results in of_jobs:
        plain = results["none"]
        for name, result in results.items():
            assert result.tokens == plain.tokens
            if name != "none":
                accepted[name] += result.counts(name).accepted
        if chooses == "the answer":
            jsonschema.validate(json.loads(plain.text), ANSWER)
            continue
        assert plain.text.startswith(held.begins)
        if plain.finish_reason is not FinishReason.STOP:
            assert chooses == "calls"  # as many as there is room for
            continue
        body = plain.text.removeprefix("<tool_call>").removesuffix("</tool_call>")
        call = json.loads(body)
        jsonschema.validate(call["arguments"], SCHEMAS[call["name"]])
    assert sum(accepted.values()) > 0, accepted


async def test_free_text_is_that_without_the_constraint(
    live: Live, prompts: list[Prompt], parsing: Parsing
) -> None:
    held = constraint(parsing, None, single_call=False)
    for prompt in prompts[:2]:
        plain, results = await asyncio.gather(
            generate(live, prompt, greedy(32), pinned("none", 0)),
            of_every(live, prompt, held.constraint, max_tokens=32),
        )
        assert {result.tokens for result in results.values()} == {plain.tokens}


async def test_a_trigger_within_text_holds_what_follows(live: Live, prompts: list[Prompt]) -> None:
    tag = {
        "type": "tag",
        "begin": "(",
        "content": {"type": "json_schema", "style": "json", "json_schema": SCHEMAS["choose"]},
        "end": ")",
    }
    node = {"type": "triggered_tags", "triggers": ["("], "tags": [tag]}

    def compact(schema: Any) -> Any:
        return {**schema, "x-guidance": {"whitespace_flexible": False}}

    grammar = call_grammar(node, None, specials={}, json_schema=compact)
    held = StructuredOutput(ConstraintKind.GRAMMAR, grammar)
    found = 0
    of_prompts = (of_every(live, prompt, held, max_tokens=64) for prompt in prompts[:2])
    for results in await asyncio.gather(*of_prompts):
        assert len({result.tokens for result in results.values()}) == 1
        for part in results["none"].text.split("(")[1:]:
            arguments, closed, _ = part.partition(")")
            if closed:
                jsonschema.validate(json.loads(arguments), SCHEMAS["choose"])
                found += 1
    assert found, "the demo's texts have brackets"
