"""Calls with marked parameters: what a grammar lets through is what vLLM's own parser reads."""

import json
import random
from typing import Any

import jsonschema
import llguidance.numpy as bitmasks
import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.parsing import CallConstraint, ParsingRequest
from engine_adapter.seam.types import ConstraintKind, Delta, FinishReason, StructuredOutput
from engine_adapter.vllm_engine.gateway import parsing as module
from engine_adapter.vllm_engine.gateway.parsing import VllmParsers, VllmParsing
from tests.engine_adapter.vllm_engine.gateway.parser_texts import (
    TARGET,
    ParserKind,
    tokenizer_of,
)

pytestmark = pytest.mark.needs_vllm

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "a city"},
        "unit": {"$ref": "#/$defs/unit"},
        "days": {"type": "integer", "minimum": 1, "maximum": 20},
        "loud": {"type": "boolean"},
        "hours": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"unit": {"type": "string", "enum": ["kelvin", "celsius"]}},
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get_weather": SCHEMA, "now": NOTHING}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": None, "parameters": schema}}
    for name, schema in SCHEMAS.items()
)
ANSWER = StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"type": "object"}', param="response_format")
WEATHER = {"city": "Bad <b>\n 5", "unit": "kelvin", "days": 3, "loud": True, "hours": [1, 22]}

DSML_TOKEN = "｜DSML｜"  # noqa: RUF001
DSML = (
    '<｜DSML｜{0}parameter name="{{name}}" string="{{is_text}}">{{value}}</｜DSML｜{0}parameter>\n'  # noqa: RUF001
)
DSML_CALL = '<｜DSML｜{0}{1}calls>\n<｜DSML｜{0}invoke name="{{name}}">\n{{body}}</｜DSML｜{0}invoke>\n</｜DSML｜{0}{1}calls>'  # noqa: RUF001, E501
FORMS: dict[str, tuple[str, str, str]] = {
    "qwen3_coder": (
        "<tool_call>\n<function={name}>\n{body}\n</function>\n</tool_call>",
        "<parameter={name}>\n{value}\n</parameter>",
        "\n",
    ),
    "mimo": (
        "<tool_call><function={name}>{body}</function></tool_call>",
        "<parameter={name}>{value}</parameter>",
        "",
    ),
    "glm47": (
        "<tool_call>{name}{body}</tool_call>",
        "<arg_key>{name}</arg_key><arg_value>{value}</arg_value>",
        "",
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="{name}">\n{body}</invoke>\n</minimax:tool_call>',
        '<parameter name="{name}">{value}</parameter>\n',
        "",
    ),
    "deepseek_v32": (DSML_CALL.format("", "function_"), DSML.format(""), ""),
    "deepseek_v4": (DSML_CALL.format("", "tool_"), DSML.format(""), ""),
    "deepseek_v41": (DSML_CALL.format(" ", ""), DSML.format(" "), ""),
}
FORMS |= {
    "qwen3_xml": FORMS["qwen3_coder"],
    "step3p5": FORMS["qwen3_coder"],
    "glm45": FORMS["glm47"],
    "ling3": FORMS["glm47"],
}
"""Parser -> a call, an argument, and what is between two arguments."""


def call_text(parser: str, name: str, arguments: dict[str, Any]) -> str:
    """A call as the parser's models write it."""
    call, argument, between = FORMS[parser]
    body = between.join(
        argument.format(
            name=key,
            value=value if isinstance(value, str) else json.dumps(value, separators=(",", ":")),
            is_text=json.dumps(isinstance(value, str)),
        )
        for key, value in arguments.items()
    )
    return call.format(name=name, body=body)


class Held:
    """A parser with the constraint that its grammar makes."""

    def __init__(self, name: str, tokenizer: Any, parsing: VllmParsing) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._parsing = parsing
        self._known = from_tokenizer(tokenizer)

    def constraint(self, answer: StructuredOutput | None) -> CallConstraint:
        texts = {name: json.dumps(schema) for name, schema in SCHEMAS.items()}
        return self._parsing.call_constraint(texts, answer, single_call=False)

    def matcher(self, constraint: CallConstraint) -> LLMatcher:
        grammar = LLMatcher.grammar_from_lark(constraint.constraint.value)
        matcher = LLMatcher(self._known, grammar)
        assert not matcher.get_error(), matcher.get_error()
        return matcher

    def tokens(self, text: str) -> list[int]:
        return self._known.tokenize_bytes(text.encode(), parse_special=True)

    def accepts(self, constraint: CallConstraint, text: str) -> bool:
        matcher, tokens = self.matcher(constraint), self.tokens(text)
        return bool(
            matcher.validate_tokens(tokens) == len(tokens)
            and matcher.consume_tokens(tokens)
            and matcher.is_accepting()
        )

    def calls(self, text: str, token_ids: list[int]) -> list[tuple[str, Any]]:
        """What vLLM's parser reads."""
        everything = Delta(text, tuple(token_ids), finish_reason=FinishReason.STOP)
        message = self._parsing.new_parser().whole(everything)
        return [(call.name, json.loads(call.arguments)) for call in message.calls]

    def sample(self, constraint: CallConstraint, seed: int) -> tuple[str, list[int]]:
        """A text that the grammar lets through, with its tokens."""
        chance = random.Random(seed)
        begin = chance.choice(constraint.begins)
        matcher, token_ids = self.matcher(constraint), self.tokens(begin)
        assert matcher.consume_tokens(token_ids)
        mask = bitmasks.allocate_token_bitmask(1, self._known.vocab_size)
        end_of_text = self.tokens(FORMS[self.name][1].partition("{value}")[2])
        while not (matcher.is_stopped() or matcher.is_accepting()):
            ends = matcher.validate_tokens(end_of_text) == len(end_of_text)
            if ends and chance.random() < 0.3:
                chosen = end_of_text
            else:
                bitmasks.fill_next_token_bitmask(matcher, mask)
                bits = mask.view("uint8")[0]
                allowed = [i for i in range(self._known.vocab_size) if bits[i // 8] >> i % 8 & 1]
                assert not matcher.get_error(), matcher.get_error()
                chosen = [chance.choice([i for i in allowed if i != self._known.eos_token])]
            assert matcher.consume_tokens(chosen)
            token_ids += chosen
            assert len(token_ids) < 4_000, self._tokenizer.decode(token_ids)[-200:]
        return self._tokenizer.decode(token_ids), token_ids


@pytest.fixture(params=sorted(FORMS))
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Each parser, with a tokenizer that has its tokens."""
    name = request.param
    tokenizer = tokenizer_of(ParserKind("tool_call_parser", name))
    tokenizer.add_tokens([DSML_TOKEN], special_tokens=True)
    monkeypatch.setattr(module, "load_tokenizer", lambda config: tokenizer)
    parsers = VllmParsers(EngineConfig(TARGET, "demo", tool_call_parser=name))
    parsers.load()
    parsing = parsers.parsing(ParsingRequest((5,), TOOLS), None)
    assert parsing is not None
    return Held(name, tokenizer, parsing)


def test_right_calls_are_accepted_and_read(held: Held) -> None:
    made = held.constraint(ANSWER)
    for name, arguments in (
        ("get_weather", WEATHER),
        ("get_weather", {"city": "3", "days": 20}),
        ("get_weather", {"city": "", "days": 1, "note": "null and void"}),
        ("now", {}),
    ):
        begin = made.begins[0]
        text = begin[: -len(begin.lstrip())] + call_text(held.name, name, arguments)
        assert held.accepts(made, text), text
        assert held.calls(text, held.tokens(text)) == [(name, arguments)]
    assert held.accepts(made, '{"a":1}')


def test_wrong_calls_are_not(held: Held) -> None:
    made = held.constraint(ANSWER)
    for name, arguments in (
        ("get_weather", {**WEATHER, "unit": "miles"}),
        ("get_weather", {**WEATHER, "days": 30}),
        ("get_weather", {**WEATHER, "days": "many"}),
        ("get_weather", {**WEATHER, "hours": ["1"]}),
        ("get_weather", {"city": "Bonn"}),
        ("get_weather", {"days": 3, "city": "Bonn"}),
        ("get_weather", {"city": "Bonn", "days": 3, "other": "x"}),
        ("now", {"city": "Bonn"}),
        ("get_time", {}),
    ):
        text = call_text(held.name, name, arguments)
        assert not held.accepts(made, text), text
    for text in ("Hello.", "Well. " + call_text(held.name, "now", {})):
        assert not held.accepts(made, text), text


def test_in_free_text_calls_are_held(held: Held) -> None:
    made = held.constraint(None)
    right, wrong = (
        call_text(held.name, "get_weather", {"city": "Bonn", "days": days}) for days in (3, 30)
    )
    for text in ("", "5 < 6.", f"Well. {right}", right):
        assert held.accepts(made, text), text
    for text in (wrong, f"Well. {wrong}"):
        assert not held.accepts(made, text), text


def test_every_call_that_the_grammar_makes_is_read_and_fits_its_schema(held: Held) -> None:
    made = held.constraint(ANSWER)
    counts = dict.fromkeys(SCHEMAS, 0)
    for seed in range(30):
        text, token_ids = held.sample(made, seed)
        calls = held.calls(text, token_ids)
        assert calls, text
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])
            counts[name] += 1
    assert all(counts.values()), counts
