"""Constraints on chosen calls, for vLLM's parsers: which have one, and what it accepts."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import AutoTokenizer

from demo import model_path
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.message_parts import assemble
from engine_adapter.seam.parsing import CallConstraint, NoCallGrammar, Parsing, ParsingRequest
from engine_adapter.seam.types import ConstraintKind, Delta, FinishReason, StructuredOutput
from engine_adapter.vllm_engine.gateway import parsing as module
from engine_adapter.vllm_engine.gateway.parsing import VllmParsers

pytestmark = pytest.mark.needs_vllm

TARGET = str(model_path("target"))
ARGUMENTS = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/x"}},
    "required": ["x"],
    "additionalProperties": False,
    "$defs": {"x": {"enum": ["p", "q"]}},
}
SCHEMAS = {"get": json.dumps(ARGUMENTS), "any-object": '{"type": "object"}'}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": None, "parameters": None}}
    for name in SCHEMAS
)
ANSWER = StructuredOutput(
    ConstraintKind.JSON_SCHEMA,
    '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}',
    param="response_format",
    unenforced=("uniqueItems",),
)
GET, ANY = '{"x":"p"}', '{"b":[1]}'
CALLS: dict[str, tuple[str, str]] = {
    "hermes": (
        f'<tool_call>\n{{"name": "get", "arguments": {GET}}}\n</tool_call>',
        f'<tool_call>{{"name": "any-object", "arguments": {ANY}}}</tool_call>',
    ),
    "longcat": (
        f'<longcat_tool_call>\n{{"name": "get", "arguments": {GET}}}\n</longcat_tool_call>',
        f'<longcat_tool_call>{{"name": "any-object", "arguments": {ANY}}}</longcat_tool_call>',
    ),
    "llama3_json": (
        f'{{"name": "get", "parameters": {GET}}}',
        f'{{"name": "any-object", "parameters": {ANY}}}',
    ),
}
"""Parser -> two calls as its models write them."""
ADDED = ("<longcat_tool_call>", "</longcat_tool_call>", "<|python_tag|>")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The demo's tokenizer with tokens that parsers look for."""
    made: Any = AutoTokenizer.from_pretrained(TARGET)
    made.add_tokens(list(ADDED), special_tokens=True)
    return made


@pytest.fixture
def of(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the parsing of a request for a parser."""
    monkeypatch.setattr(module, "load_tokenizer", lambda config: tokenizer)

    def make(name: str, **arguments: Any) -> Parsing:
        config = EngineConfig(TARGET, "demo", tool_call_parser=name, arguments=arguments)
        parsers = VllmParsers(config)
        parsers.load()
        made = parsers.parsing(ParsingRequest((5,), TOOLS), None)
        assert made is not None
        return made

    return make


def accepts(constraint: CallConstraint, tokenizer: Any, text: str) -> bool:
    assert constraint.constraint.kind is ConstraintKind.GRAMMAR
    known = from_tokenizer(tokenizer)
    grammar = LLMatcher.grammar_from_lark(constraint.constraint.value)
    matcher = LLMatcher(known, grammar)
    tokens = known.tokenize_bytes(text.encode(), parse_special=True)
    return bool(
        matcher.validate_tokens(tokens) == len(tokens)
        and matcher.consume_tokens(tokens)
        and matcher.is_accepting()
    )


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_a_parser_or_an_answer_are_accepted_and_read(
    of: Any, tokenizer: Any, name: str
) -> None:
    parsing = of(name)
    made = parsing.call_constraint(SCHEMAS, ANSWER, single_call=False)
    assert (made.constraint.param, made.constraint.unenforced) == (
        "response_format",
        ("uniqueItems",),
    )
    assert accepts(made, tokenizer, '{"a":1}')
    for text in (*CALLS[name], *([] if name == "llama3_json" else ["".join(CALLS[name])])):
        assert accepts(made, tokenizer, text), text
        assert text.startswith(made.begins)
        everything = Delta(text, tuple(tokenizer.encode(text)), finish_reason=FinishReason.STOP)
        whole = parsing.new_parser().whole(everything)
        assert [json.loads(call.arguments) for call in whole.calls] in (
            [{"x": "p"}],
            [{"b": [1]}],
            [{"x": "p"}, {"b": [1]}],
        )
    for text in ("Hello", CALLS[name][0].replace('"p"', '"r"'), '{"a":"1"}', '{"a": 1}'):
        assert not accepts(made, tokenizer, text), text


@pytest.mark.parametrize("name", CALLS)
def test_one_call_at_most(of: Any, tokenizer: Any, name: str) -> None:
    made = of(name).call_constraint(SCHEMAS, ANSWER, single_call=True)
    assert accepts(made, tokenizer, CALLS[name][0])
    assert not accepts(made, tokenizer, "".join(CALLS[name]))


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_free_text_are_held_to_their_schemas(of: Any, tokenizer: Any, name: str) -> None:
    made = of(name).call_constraint(SCHEMAS, None, single_call=False)
    assert (made.constraint.param, made.begins) == ("tools", ())
    first, second = CALLS[name]
    for text in ("", "Hello.", f"Well: {first}; {second}"):
        assert accepts(made, tokenizer, text), text
    assert not accepts(made, tokenizer, first.replace('"p"', '"r"'))


def test_any_json_object_can_be_the_answer(of: Any, tokenizer: Any) -> None:
    answer = StructuredOutput(ConstraintKind.JSON_OBJECT, param="response_format")
    made = of("hermes").call_constraint(SCHEMAS, answer, single_call=False)
    assert accepts(made, tokenizer, '{"b":[1]}')
    assert not accepts(made, tokenizer, "[1]")


def test_white_space_is_as_the_server_is_set(of: Any, tokenizer: Any) -> None:
    loose = {"disable_any_whitespace": False}
    made = of("hermes", structured_outputs_config=loose).call_constraint(
        SCHEMAS, ANSWER, single_call=False
    )
    assert accepts(made, tokenizer, '{ "a": 1 }')
    assert accepts(made, tokenizer, CALLS["hermes"][0].replace('{"x":"p"}', '{ "x": "p" }'))


@pytest.mark.parametrize("name", ["pythonic", "functiongemma", "xlam"])
def test_a_parser_whose_calls_no_grammar_expresses_is_named(of: Any, name: str) -> None:
    try:
        parsing = of(name)
    except Exception as error:  # its model's tokens are not in this tokenizer
        pytest.skip(str(error))
    for answer in (ANSWER, None):
        with pytest.raises(NoCallGrammar, match=name):
            parsing.call_constraint(SCHEMAS, answer, single_call=False)


def test_another_backend_is_named(of: Any) -> None:
    parsing = of("hermes", structured_outputs_config={"backend": "xgrammar"})
    with pytest.raises(NoCallGrammar, match="xgrammar"):
        parsing.call_constraint(SCHEMAS, ANSWER, single_call=False)


def test_the_stream_of_a_held_call_is_read(of: Any, tokenizer: Any) -> None:
    parser, pieces = of("hermes").new_parser(), []
    text = CALLS["hermes"][0]
    for token in tokenizer.encode(text, add_special_tokens=False):
        pieces += parser.read(Delta(tokenizer.decode([token]), (token,)))
    pieces += parser.read(Delta("", (2,), finish_reason=FinishReason.STOP))
    (call,) = assemble(pieces).calls
    assert (call.name, json.loads(call.arguments)) == ("get", {"x": "p"})
